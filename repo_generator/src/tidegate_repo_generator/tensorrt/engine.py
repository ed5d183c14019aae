"""Description of a TensorRT engine: its tensors, the sizes that it is built for, its precision."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate_repo_generator.dataflow import Dataflow, shape_inputs
from tidegate_repo_generator.model import GenerateError, Precision, Tensor
from tidegate_repo_generator.onnx_file import OnnxFile, load_proto
from tidegate_repo_generator.tensorrt.sizes import ProfileSizes, sizes_of

ENGINE_FILE: Final = "engine.json"
PLAN_FILE: Final = "model.plan"
BUILD_SCRIPT: Final = Path(__file__).parent / "build_engine.py"
"""Script that builds engines, to be copied beside models; it imports nothing of Tidegate."""

_TYPES: Final = {"BOOL", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "BF16"}
"""Types that Triton's TensorRT backend supports."""
_QUANTIZED: Final = {"QuantizeLinear", "DequantizeLinear"}


@dataclass(frozen=True)
class Engine:
    """Description of one TensorRT engine."""

    precision: Precision
    inputs: tuple[tuple[Tensor, ProfileSizes], ...]
    outputs: tuple[Tensor, ...]

    def text(self, onnx: str, plan: str) -> str:
        """Return the text of the `engine.json` that `build_engine.py` reads. `onnx`, `plan`: paths relative to it."""
        inputs = [{**_described(tensor), **sizes.as_lists()} for tensor, sizes in self.inputs]
        outputs = [_described(tensor) for tensor in self.outputs]
        text = json.dumps(
            {
                "version": 1,
                "onnx": onnx,
                "plan": plan,
                "precision": self.precision.value,
                "inputs": inputs,
                "outputs": outputs,
            },
            indent=2,
        )
        return text + "\n"


def engine_of(
    model: OnnxFile, *, precision: Precision, max_batch: int, shapes: Sequence[Mapping[str, Sequence[int]]]
) -> Engine:
    """Describe the engine of a model, for batches of 1 to `max_batch` rows (0: the model does not batch).

    `shapes`: request shapes, each input's sizes without the rows; see `sizes_of`. Raises GenerateError for tensor types
    that TensorRT does not support, for a precision that the model is not made for, and for shapes that do not fit.
    """
    for tensor in model.inputs + model.outputs:
        if tensor.data_type not in _TYPES:
            raise GenerateError(
                f"{model.path}: '{tensor.name}' is {tensor.data_type}, which TensorRT cannot take or give: cast it "
                f"inside the model to one of {', '.join(sorted(_TYPES))}, or generate it with --deploy-target triton"
            )
    check_graph(model, precision)
    sizes = sizes_of(model, max_batch, shapes)
    return Engine(precision, tuple((tensor, sizes[tensor.name]) for tensor in model.inputs), model.outputs)


def check_graph(model: OnnxFile, precision: Precision) -> None:
    """Raise GenerateError if TensorRT needs more than the sizes of the model's inputs.

    This applies to inputs whose values are shapes, and to eight-bit integers, which need scales.
    """
    flow = Dataflow(load_proto(model.path))
    for name, reader in shape_inputs(flow).items():
        raise GenerateError(
            f"{model.path}: the values of input '{name}' decide a shape (node '{reader}'), and TensorRT must know such "
            "values when the engine is built: fix them in the model, or generate it with --deploy-target triton"
        )
    if precision is not Precision.INT8:
        return
    if not any(node.op_type in _QUANTIZED for node in flow.nodes):
        raise GenerateError(
            f"{model.path} is not quantized (it has no QuantizeLinear), so that it lacks the scales that --precision "
            "int8 needs: quantize it first, with onnxruntime.quantization or NVIDIA ModelOpt, or use fp16"
        )


def _described(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": tensor.data_type, "shape": tensor.dims}
