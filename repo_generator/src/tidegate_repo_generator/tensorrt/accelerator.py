"""TensorRT accelerator of Triton's ONNX Runtime backend, which builds engines itself for the shapes it receives.

A shape larger than any before causes a rebuild of the engine, which takes minutes while requests wait. So the
configuration has Triton run the smallest and the largest batch before it reports the model ready (`model_warmup`).
Explicit optimization profiles would avoid one of the two builds, but a model that runs partly on TensorRT and partly on
ONNX Runtime does not load with them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate_repo_generator.model import GenerateError, Precision
from tidegate_repo_generator.onnx_file import OnnxFile
from tidegate_repo_generator.tensorrt.engine import check_graph
from tidegate_repo_generator.tensorrt.sizes import Shape, sizes_of

_MODES = {Precision.FP32: "FP32", Precision.FP16: "FP16", Precision.INT8: "INT8"}
"""Names of the precisions in Triton's backend, which has no others."""


def accelerate(
    config: Any,  # noqa: ANN401
    model: OnnxFile,
    precision: Precision,
    shapes: Sequence[Mapping[str, Sequence[int]]],
) -> None:
    """Add the accelerator and the warm-up to a ModelConfig that is otherwise complete. Raises GenerateError.

    `config`: changed in place. `shapes`: request shapes, see `sizes_of`. Engines are cached in the working directory of
    tritonserver.
    """
    if precision not in _MODES:
        known = ", ".join(each.value for each in _MODES)
        raise GenerateError(
            f"--precision {precision.value}: Triton's ONNX Runtime backend has {known} only: choose one of them, or "
            "--deploy-target tensorrt"
        )
    check_graph(model, precision)
    sizes = sizes_of(model, config.max_batch_size, shapes)
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    accelerator.parameters["precision_mode"] = _MODES[precision]
    accelerator.parameters["trt_engine_cache_enable"] = "true"
    ends = {name: (each.smallest, each.largest) for name, each in sizes.items()}
    _warm_up(config, "smallest", {name: smallest for name, (smallest, _) in ends.items()})
    if any(smallest != largest for smallest, largest in ends.values()):
        _warm_up(config, "largest", {name: largest for name, (_, largest) in ends.items()})


def _warm_up(config: Any, name: str, shapes: dict[str, Shape]) -> None:  # noqa: ANN401
    """Have Triton run one batch of these shapes. Zeros are valid tokens, indices and pictures nearly everywhere."""
    batches = config.max_batch_size > 0
    sample = config.model_warmup.add(name=name, batch_size=next(iter(shapes.values()))[0] if batches else 0)
    for entry in config.input:
        tensor = sample.inputs[entry.name]
        tensor.data_type = entry.data_type
        tensor.dims.extend((shapes[entry.name][1:] if batches else shapes[entry.name]) or (1,))
        tensor.zero_data = True
