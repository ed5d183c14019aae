"""Symbolic shapes of all values, and the elements of shape vectors that are known without running the model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import onnx
from onnx import TensorProto, helper, numpy_helper

from tidegate_repo_generator.dataflow import Dataflow
from tidegate_repo_generator.onnx_file import with_inferred_shapes

BATCH_SYMBOL: Final = "batch"
"""Symbol of the batch dimension."""
Dim = int | str | None
"""Size of a dimension: a number, the name of a dynamic one, or None if unknown. Equal names are equal sizes."""
_INTEGERS: Final = (TensorProto.INT64, TensorProto.INT32)
_LONGEST: Final = 64


@dataclass(frozen=True)
class KnownShape:
    """An integer scalar or vector whose elements are known as sizes."""

    elements: tuple[Dim, ...]
    scalar: bool = False
    data_type: int = TensorProto.INT64


@dataclass(frozen=True)
class Symbols:
    """Results of the static analysis of a model."""

    shapes: dict[str, tuple[Dim, ...]]
    """Shapes of the values whose rank is known, by name."""
    types: dict[str, int]
    """Element types (TensorProto.DataType) of tensors, as far as known."""
    not_tensors: set[str]
    """Names of values that are sequences, maps or optionals."""


def read_symbols(flow: Dataflow) -> Symbols:
    """Infer shapes with a unique name for every dynamic dimension of the inputs, and `BATCH_SYMBOL` for the first."""
    light = onnx.ModelProto()
    light.CopyFrom(flow.proto)
    own = set(flow.inputs)
    for value in light.graph.input:
        if value.name in own:
            for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
                if axis == 0:
                    dimension.dim_param = BATCH_SYMBOL
                elif not dimension.HasField("dim_value") or dimension.dim_value < 0:
                    # Exporters give one name, like "?", to dimensions that differ.
                    dimension.dim_param = f"{value.name}_{axis}"
    for value in light.graph.output:
        value.type.tensor_type.ClearField("shape")  # of the exporter's making, and often wrong in the dynamic ones
    del light.graph.value_info[:]
    graph = with_inferred_shapes(light).graph
    shapes: dict[str, tuple[Dim, ...]] = {}
    types: dict[str, int] = {}
    not_tensors = set()
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.WhichOneof("value") not in {"tensor_type", None}:
            not_tensors.add(value.name)
            continue
        tensor = value.type.tensor_type
        if tensor.elem_type:
            types[value.name] = tensor.elem_type
        if tensor.HasField("shape"):
            shapes[value.name] = tuple(
                dimension.dim_value if dimension.HasField("dim_value") else dimension.dim_param or None
                for dimension in tensor.shape.dim
            )
    for name, tensor in flow.weights.items():
        if isinstance(tensor, TensorProto):
            shapes[name], types[name] = tuple(tensor.dims), tensor.data_type
    return Symbols(shapes, types, not_tensors)


def known_values(flow: Dataflow, shapes: dict[str, tuple[Dim, ...]]) -> dict[str, KnownShape]:
    """Follow shapes through shape arithmetic; return the integer values whose elements are all or partly known."""
    known: dict[str, KnownShape] = {}
    for name, tensor in flow.weights.items():
        _keep(known, name, _of_tensor(tensor))
    for node in flow.nodes:
        if node.domain in {"", "ai.onnx"} and len(node.output) == 1:
            _keep(known, node.output[0], _evaluate(node, known, shapes))
    return known


def _keep(known: dict[str, KnownShape], name: str, value: KnownShape | None) -> None:
    if value is not None and len(value.elements) <= _LONGEST:
        known[name] = value


def _of_tensor(tensor: Any) -> KnownShape | None:  # noqa: ANN401
    if not isinstance(tensor, TensorProto) or tensor.data_type not in _INTEGERS or len(tensor.dims) > 1:
        return None
    if tensor.data_location == TensorProto.EXTERNAL or (tensor.dims and tensor.dims[0] > _LONGEST):
        return None
    values = numpy_helper.to_array(tensor)
    return KnownShape(tuple(map(int, values.reshape(-1))), values.ndim == 0, tensor.data_type)


def _evaluate(node: Any, known: dict[str, KnownShape], shapes: dict[str, tuple[Dim, ...]]) -> KnownShape | None:  # noqa: ANN401
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute if not entry.ref_attr_name}
    if node.op_type == "Constant":
        return _constant(attributes)
    if node.op_type == "Shape":
        shape = shapes.get(node.input[0])
        start, end = attributes.get("start", 0), attributes.get("end")
        return None if shape is None else KnownShape(shape[start:end])
    inputs = [known.get(name) for name in node.input]
    rule = _RULES.get(node.op_type)
    if rule is None or not inputs or any(value is None for value in inputs):
        return None
    return rule([value for value in inputs if value is not None], attributes)


def _constant(attributes: dict[str, Any]) -> KnownShape | None:
    if "value" in attributes:
        return _of_tensor(attributes["value"])
    if "value_int" in attributes:
        return KnownShape((attributes["value_int"],), scalar=True)
    return KnownShape(tuple(attributes["value_ints"])) if "value_ints" in attributes else None


def _cast(inputs: list[KnownShape], attributes: dict[str, Any]) -> KnownShape | None:
    return replace(inputs[0], data_type=attributes["to"]) if attributes["to"] in _INTEGERS else None


def _gather(inputs: list[KnownShape], attributes: dict[str, Any]) -> KnownShape | None:
    data, indices = inputs
    if data.scalar or attributes.get("axis", 0):
        return None
    size = len(data.elements)
    if not all(isinstance(i, int) and -size <= i < size for i in indices.elements):
        return None
    picked = tuple(data.elements[i] for i in indices.elements if isinstance(i, int))
    return KnownShape(picked, indices.scalar, data.data_type)


def _slice(inputs: list[KnownShape], attributes: dict[str, Any]) -> KnownShape | None:
    data = inputs[0]
    if not all(value.elements for value in inputs[1:]):
        return None
    if len(inputs) == 1:  # before opset 10
        bounds = [attributes["starts"][0], attributes["ends"][0]]
    else:
        bounds = [value.elements[0] for value in inputs[1:3]]
    bounds += [value.elements[0] for value in inputs[4:5]]
    if data.scalar or not all(isinstance(bound, int) for bound in bounds):
        return None
    return replace(data, elements=data.elements[slice(*bounds)])


def _concat(inputs: list[KnownShape], _: dict[str, Any]) -> KnownShape | None:
    elements = tuple(element for value in inputs for element in value.elements)
    return KnownShape(elements, data_type=inputs[0].data_type)


def _unsqueeze(inputs: list[KnownShape], _: dict[str, Any]) -> KnownShape | None:
    return replace(inputs[0], scalar=False) if inputs[0].scalar else None


def _squeeze(inputs: list[KnownShape], _: dict[str, Any]) -> KnownShape | None:
    return replace(inputs[0], scalar=True) if len(inputs[0].elements) == 1 else None


def _arithmetic(compute: Callable[[int, int], int]) -> Callable[[list[KnownShape], dict[str, Any]], KnownShape | None]:
    def rule(inputs: list[KnownShape], _: dict[str, Any]) -> KnownShape | None:
        left, right = inputs
        size = max(len(left.elements), len(right.elements))
        pairs = [value.elements * size if len(value.elements) == 1 else value.elements for value in (left, right)]
        if len(pairs[0]) != len(pairs[1]):
            return None
        elements = tuple(
            compute(a, b) if isinstance(a, int) and isinstance(b, int) and b else None
            for a, b in zip(*pairs, strict=True)
        )
        return KnownShape(elements, left.scalar and right.scalar, left.data_type)

    return rule


_RULES: Final[dict[str, Callable[[list[KnownShape], dict[str, Any]], KnownShape | None]]] = {
    "Identity": lambda inputs, _: inputs[0],
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Add": _arithmetic(lambda a, b: a + b),
    "Sub": _arithmetic(lambda a, b: a - b),
    "Mul": _arithmetic(lambda a, b: a * b),
    # ONNX divides integers towards zero.
    "Div": _arithmetic(lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
}
