"""Reader of ONNX files: inputs, outputs, and the files that hold the weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper, shape_inference

from tidegate_repo_generator.dataflow import sort_nodes
from tidegate_repo_generator.model import GenerateError, Tensor

TRITON_TYPES: Final = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.STRING: "STRING",
    TensorProto.BFLOAT16: "BF16",
}
# Shape inference looks at the values of shapes, axes and the like; anything larger is a weight.
_LARGEST_SHAPE_BYTES: Final = 1024
# What some exporters call every dynamic dimension: equal names that mean nothing.
NO_NAMES: Final = {"", "?", "-1", "None"}


@dataclass(frozen=True)
class OnnxFile:
    """ONNX model on disk, as Triton sees it."""

    path: Path
    inputs: tuple[Tensor, ...]
    """Inputs that a client sends, without initializers that old files list there too."""
    outputs: tuple[Tensor, ...]
    data_files: tuple[PurePosixPath, ...]
    """Files with external weights, relative to the folder of `path`, sorted."""


def read_onnx(path: Path) -> OnnxFile:
    """Read an ONNX file without its external weights.

    Raises GenerateError if the file is missing or no ONNX, if external weights are missing or lie outside its folder,
    and for inputs and outputs that Triton cannot express.
    """
    proto = load_proto(path)
    data_files = tuple(sorted({_data_file(path, tensor) for tensor in external_tensors(proto)}))
    if not all(_is_complete(output) for output in proto.graph.output):
        proto = with_inferred_shapes(proto)
    weights = {tensor.name for tensor in proto.graph.initializer}
    weights |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
    inputs = tuple(_tensor(path, "input", value) for value in proto.graph.input if value.name not in weights)
    outputs = tuple(_tensor(path, "output", value) for value in proto.graph.output)
    if not inputs:
        raise GenerateError(f"{path} has no inputs: there is nothing that a client could send it")
    return OnnxFile(path, inputs, outputs, data_files)


def load_proto(path: Path) -> Any:  # noqa: ANN401 - onnx's messages have no types
    """Load a model without its external weights, its nodes in topological order.

    Raises GenerateError if the file is missing or no ONNX.
    """
    if not path.is_file():
        raise GenerateError(f"{path} is not a file: give the path of an ONNX model")
    try:
        proto = onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise GenerateError(f"{path} is not an ONNX model: export the model to ONNX first") from error
    except OSError as error:
        raise GenerateError(f"{path} cannot be read: {error.strerror}") from error
    # Protobuf takes an empty file, and some others, for a message; no model is without these.
    if not proto.ir_version or not proto.opset_import or not proto.graph.output:
        raise GenerateError(f"{path} is not an ONNX model (it has no version or no outputs): export it again")
    sort_nodes(proto, str(path))
    return proto


def external_tensors(proto: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the tensors of a model, of its nodes and subgraphs too, whose data are in files of their own."""
    graphs, nodes = [proto.graph], [node for function in proto.functions for node in function.node]
    tensors = []
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes.extend(graph.node)
            tensors.extend(graph.initializer)
            sparse = list(graph.sparse_initializer)
        else:
            attributes = nodes.pop().attribute
            graphs.extend(graph for entry in attributes for graph in (entry.g, *entry.graphs) if graph.node)
            tensors.extend(tensor for entry in attributes for tensor in (entry.t, *entry.tensors))
            sparse = [tensor for entry in attributes for tensor in (entry.sparse_tensor, *entry.sparse_tensors)]
        tensors.extend(part for tensor in sparse for part in (tensor.values, tensor.indices))
        yield from filter(external_data_helper.uses_external_data, tensors)
        tensors.clear()


def _data_file(path: Path, tensor: Any) -> PurePosixPath:  # noqa: ANN401
    location = PurePosixPath(external_data_helper.ExternalDataInfo(tensor).location)
    if location.is_absolute() or ".." in location.parts:
        raise GenerateError(
            f"{path}: tensor '{tensor.name}' keeps its data in '{location}', outside the folder of the model: save the "
            "model again with its external data beside it"
        )
    if not (path.parent / location).is_file():
        raise GenerateError(
            f"{path}: the data of tensor '{tensor.name}' is missing: put the file '{location}' beside the model"
        )
    return location


def _is_complete(value: Any) -> bool:  # noqa: ANN401
    tensor_type = value.type.tensor_type
    has_both = tensor_type.elem_type != TensorProto.UNDEFINED and tensor_type.HasField("shape")
    return bool(has_both or value.type.WhichOneof("value") not in {"tensor_type", None})


def with_inferred_shapes(proto: Any) -> Any:  # noqa: ANN401
    """Return a copy of a model, without large weights, with the types and shapes that can be inferred."""
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    for tensor in light.graph.initializer:
        if len(tensor.raw_data) > _LARGEST_SHAPE_BYTES:
            tensor.ClearField("raw_data")  # inference copies the model several times
    try:
        return shape_inference.infer_shapes(light, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return proto  # what is still unknown is reported with its tensor's name


def _tensor(path: Path, kind: str, value: Any) -> Tensor:  # noqa: ANN401
    where = f"{path}: {kind} '{value.name}'"
    form = value.type.WhichOneof("value")
    if form not in {"tensor_type", None}:
        raise GenerateError(
            f"{where} is a {form.removesuffix('_type').replace('_', ' ')}, and Triton knows tensors only: export the "
            "model with plain tensors (for converters of scikit-learn: the option zipmap=False)"
        )
    tensor_type = value.type.tensor_type
    if tensor_type.elem_type == TensorProto.UNDEFINED or not tensor_type.HasField("shape"):
        raise GenerateError(f"{where} has no declared type or shape: export the model with both")
    if tensor_type.elem_type not in TRITON_TYPES:
        raise GenerateError(
            f"{where} has the type {TensorProto.DataType.Name(tensor_type.elem_type)}, which Triton does not know: "
            f"cast it inside the model to one of {', '.join(TRITON_TYPES.values())}"
        )
    shape = tuple(_size(dimension) for dimension in tensor_type.shape.dim)
    if 0 in shape:
        raise GenerateError(f"{where} has a dimension of fixed size 0: export it with a dynamic dimension there")
    return Tensor(value.name, TRITON_TYPES[tensor_type.elem_type], shape)


def _size(dimension: Any) -> int | str:  # noqa: ANN401
    # Some exporters write a dynamic dimension as a size of -1.
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    name = str(dimension.dim_param)
    return "" if name in NO_NAMES else name
