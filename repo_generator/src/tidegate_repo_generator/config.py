"""Writer of a model's `config.pbtxt`, through Triton's own protobuf messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate_repo_generator.model import DeployTarget, GenerateError, Precision, Tensor
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

    A shape larger than any before causes a rebuild of the engine, which takes minutes while requests wait. So Triton
    runs the smallest and the largest batch before it reports the model ready (`model_warmup`). Explicit optimization
    profiles would avoid one of the two builds, but a model that runs partly on TensorRT and partly on ONNX Runtime does
    not load with them.

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


_HEADER: Final = "# Written by `tidegate generate` from {source!r}.\n"
_MERGED: Final = """\
# There is no dynamic_batching on purpose: Tidegate forms the batches (tidegate_scheduling says that it may), and Triton
# runs each as it comes.
"""


def model_config(
    model: OnnxFile,
    *,
    name: str,
    deploy_target: DeployTarget,
    max_batch_size: int,
    instances: int,
    slo_ms: float | None,
    gpus: Sequence[int] = (),
    precision: Precision = Precision.FP32,
    shapes: Sequence[Mapping[str, Sequence[int]]] = (),
    limits: Mapping[str, int] | None = None,
) -> Any:  # noqa: ANN401 - Triton's messages have no types
    """Build the ModelConfig; a `max_batch_size` of 0 keeps the full shapes.

    `name`: of the Triton model; `instances`: number of its instances. `gpus`: indices of the GPUs that run the model,
    as its Triton counts them; empty: Triton picks. `precision` and `shapes` (of requests, see `tensorrt.sizes`) are for
    TensorRT. `limits`: exclusive upper bounds of integer inputs. Raises GenerateError for a model that the deploy
    target's backend cannot run.
    """
    config = model_config_pb2.ModelConfig(name=name, max_batch_size=max_batch_size)
    group = config.instance_group.add(count=instances)
    for tensor in model.inputs:
        _fill(config.input.add(), tensor, batched=max_batch_size > 0)
    for tensor in model.outputs:
        _fill(config.output.add(), tensor, batched=max_batch_size > 0)
    match deploy_target:
        case DeployTarget.EMBEDDED:
            config.backend = "python"
            if scalars := [tensor.name for tensor in model.inputs if not tensor.shape]:
                config.parameters["scalar_inputs"].string_value = ",".join(scalars)
            group.kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
            _refuse_bf16(model)
        case DeployTarget.TRITON:
            config.platform = "onnxruntime_onnx"
        case DeployTarget.TRITON_TENSORRT:
            config.platform = "onnxruntime_onnx"
            accelerate(config, model, precision, shapes)
        case DeployTarget.TENSORRT:
            _refuse_scalars(model)
            config.platform = "tensorrt_plan"
    if deploy_target is not DeployTarget.EMBEDDED and (gpus or deploy_target.takes_precision):
        group.kind = model_config_pb2.ModelInstanceGroup.KIND_GPU
        group.gpus.extend(gpus)
    if max_batch_size > 0:
        config.parameters["tidegate_scheduling"].string_value = "batched"
    if limits:
        config.parameters["tidegate_input_limits"].string_value = json.dumps(dict(limits))
    if slo_ms is not None:
        config.parameters["slo_ms"].string_value = str(int(slo_ms) if slo_ms == int(slo_ms) else slo_ms)
    return config


def config_text(config: Any, *, source: str, notices: Sequence[str] = ()) -> str:  # noqa: ANN401
    """Render a ModelConfig as the text of a `config.pbtxt`.

    `source` (name of the ONNX file) and `notices` (e.g. why requests run alone) become comments.
    """
    text: str = text_format.MessageToString(config, as_utf8=True, use_short_repeated_primitives=True)
    remarks = "".join(f"# {' '.join(notice.split())}\n" for notice in notices)
    return "".join([_HEADER.format(source=source), remarks, _MERGED * (config.max_batch_size > 0), text])


def _refuse_bf16(model: OnnxFile) -> None:
    for tensor in model.inputs + model.outputs:
        if tensor.data_type == "BF16":
            raise GenerateError(
                f"{model.path}: '{tensor.name}' is BF16, which Triton's Python backend cannot pass on: cast it to FP32 "
                "inside the model, or generate it with --deploy-target triton"
            )


def _refuse_scalars(model: OnnxFile) -> None:
    for tensor in model.inputs + model.outputs:
        if not tensor.shape:
            raise GenerateError(
                f"{model.path}: '{tensor.name}' is a scalar, which Triton's TensorRT backend does not have: export it "
                "with the shape [1], or generate it with --deploy-target triton-tensorrt"
            )


def _fill(entry: Any, tensor: Tensor, *, batched: bool) -> None:  # noqa: ANN401
    entry.name = tensor.name
    entry.data_type = model_config_pb2.DataType.Value(f"TYPE_{tensor.data_type}")
    dims = tensor.dims[1:] if batched else tensor.dims
    # Triton wants at least one dimension beside the batch's: clients see [rows, 1], the model [rows]. For scalars its
    # ONNX Runtime backend, and Tidegate's runner, take and give [1].
    entry.dims.extend(dims or [1])
    if batched and not dims:
        entry.reshape.SetInParent()
