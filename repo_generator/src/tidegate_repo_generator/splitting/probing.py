"""Probing of the batch dimension: runs the model with two and with three rows and compares shapes.

Static inference loses the batch behind reshapes and cannot follow custom operators; the shapes of a run are exact.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import TensorProto, helper

from tidegate_repo_generator.dataflow import Dataflow, Nature, SplitError
from tidegate_repo_generator.model import Tensor
from tidegate_repo_generator.onnx_file import TRITON_TYPES
from tidegate_repo_generator.onnx_sessions import Arrays, RunError, open_session, run
from tidegate_repo_generator.rows.samples import Sampler, find_samplers, index_limits
from tidegate_repo_generator.splitting.symbols import BATCH_SYMBOL, Dim, Symbols, read_symbols

_ROWS: Final = (2, 3)
_BITS: Final = {
    getattr(TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(TensorProto, name)
}
"""Sizes of elements of which several share a byte; numpy gives each a byte of its own."""
_PREFIX: Final = "tidegate_shape_of/"


@dataclass(frozen=True)
class Boundary:
    """Value that may cross a cut: a tensor with a batch dimension, of a type that Triton knows."""

    data_type: int
    """Element type, a TensorProto.DataType."""
    shape: tuple[Dim, ...]
    """Shape as sent: `BATCH_SYMBOL` first; the rest as inferred."""
    elements_per_row: int
    """Elements per row in the probe: with the sizes that were asked for, or the first that the model accepted."""
    axis: int = 0
    """Dimension of the batch in the model; if it is not the first, the value is transposed to be sent."""

    @property
    def bytes_per_row(self) -> int:
        """Bytes per row; for strings, only the four bytes of each length."""
        return size_in_bytes(self.data_type, self.elements_per_row)


@dataclass(frozen=True)
class Probe:
    """Results of a probe: shapes and batch dimensions of a model's values."""

    symbols: Symbols
    """Symbolic shapes; those of batched values begin with `BATCH_SYMBOL`."""
    batched: dict[str, Boundary]
    """Values of nature DATA that have the batch first."""
    movable: dict[str, Boundary]
    """Values of nature DATA that have the batch elsewhere."""
    unbatched: dict[str, str]
    """Values that cannot cross, except those of the first two groups, with the reason."""
    sampler: Sampler
    """Source of inputs that the model accepts."""

    def boundary(self, value: str) -> Boundary:
        """Return how a value crosses. Raises KeyError for one that may not."""
        return self.batched[value] if value in self.batched else self.movable[value]


def probe(flow: Dataflow, inputs: tuple[Tensor, ...], folder: Path, given: Arrays | None = None) -> Probe:
    """Run the model with the shape of every data value as an output.

    `inputs`: with the sizes that the user gave in place of dynamic dimensions. `folder`: folder of its external
    weights.
    `given`: rows to use instead of random ones. Raises RunError if the model cannot be run here, and SplitError if an
    output is not batched.
    """
    symbols = read_symbols(flow)
    samplers = find_samplers(open_session(flow.proto, folder), inputs, index_limits(flow), most=2, given=given)
    values = [name for index in flow.data_nodes for name in flow.nodes[index].output if name]
    values = [name for name in (*flow.inputs, *values) if name not in symbols.not_tensors]
    untyped = [name for name in values if name not in symbols.types]
    session = open_session(_instrumented(flow, values, untyped), folder)
    types = symbols.types | {
        entry.name: _type_of(entry.type) for entry in session.get_outputs() if entry.name in set(untyped)
    }
    observed: list[tuple[int, dict[str, tuple[int, ...]]]] = []
    for sampler in samplers:
        for rows in _ROWS:
            try:
                shapes = run(session, sampler.rows(rows), [_PREFIX + name for name in values])
            except RunError as error:
                raise SplitError(
                    f"it runs with one row but not with {rows} ({error}): export it with a dynamic batch"
                ) from error
            observed.append((rows, {name: tuple(map(int, shapes[_PREFIX + name])) for name in values}))
    batched: dict[str, Boundary] = {}
    movable: dict[str, Boundary] = {}
    unbatched = dict.fromkeys(symbols.not_tensors, "it is no tensor")
    for name in values:
        shapes_seen = [(rows, shapes[name]) for rows, shapes in observed]
        data_type = types.get(name, TensorProto.UNDEFINED)
        obstacle = _obstacle(data_type, shapes_seen)
        if obstacle:
            unbatched[name] = obstacle
        axis = _batch_axis(shapes_seen)
        if axis is None or data_type not in TRITON_TYPES:
            continue
        first = shapes_seen[0][1]
        inferred = symbols.shapes.get(name, ())
        inferred = inferred if len(inferred) == len(first) else (None,) * len(first)
        others = (*inferred[:axis], *inferred[axis + 1 :])
        symbols.shapes[name] = (*inferred[:axis], BATCH_SYMBOL, *inferred[axis + 1 :])
        boundary = Boundary(data_type, (BATCH_SYMBOL, *others), math.prod(first) // first[axis], axis)
        (movable if axis else batched)[name] = boundary
    _check_outputs(flow, observed[0][1], unbatched)
    return Probe(symbols, batched, movable, unbatched, samplers[0])


def _instrumented(flow: Dataflow, values: list[str], untyped: list[str]) -> Any:  # noqa: ANN401
    """Build a copy whose outputs are the shapes of values, for these are small, and values whose types are unknown."""
    model = onnx.ModelProto()
    model.CopyFrom(flow.proto)
    del model.graph.output[:]
    for name in values:
        model.graph.node.append(helper.make_node("Shape", [name], [_PREFIX + name]))
        model.graph.output.append(helper.make_tensor_value_info(_PREFIX + name, TensorProto.INT64, None))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in untyped)
    if not any(entry.domain in {"", "ai.onnx"} for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 13))
    return model


def _type_of(text: str) -> int:
    """`tensor(float)`, as onnxruntime writes types, as a TensorProto.DataType."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    return int(getattr(TensorProto, name, TensorProto.UNDEFINED))


def _obstacle(data_type: int, shapes: list[tuple[int, tuple[int, ...]]]) -> str:
    if data_type not in TRITON_TYPES:
        return f"its type, {TensorProto.DataType.Name(data_type)}, is none that Triton knows"
    for rows, shape in shapes:
        if not shape:
            return "it is a scalar"
        if shape[0] != rows:
            return f"its shape is {list(shape)} for a batch of {rows}, so its first dimension is not the batch's"
    return ""


def _batch_axis(shapes: list[tuple[int, tuple[int, ...]]]) -> int | None:
    """The dimension that is the batch's in every run: the first, or the only one."""
    if len({len(shape) for _, shape in shapes}) > 1:
        return None
    axes = [axis for axis in range(len(shapes[0][1])) if all(shape[axis] == rows for rows, shape in shapes)]
    return axes[0] if axes and (axes[0] == 0 or len(axes) == 1) else None


def _check_outputs(flow: Dataflow, observed: dict[str, tuple[int, ...]], unbatched: dict[str, str]) -> None:
    for name in flow.outputs:
        if flow.nature_of(name) is not Nature.DATA:
            continue
        if name in unbatched:
            raise SplitError(f"output '{name}' cannot be batched: {unbatched[name]}")
        if name not in observed:
            raise SplitError(f"output '{name}' was not seen in a run of the model")


def size_in_bytes(data_type: int, elements: int) -> int:
    """Return the bytes of this many elements as ONNX packs them; for strings, of their lengths. Raises SplitError."""
    if data_type == TensorProto.STRING:
        return 4 * elements
    if data_type in _BITS:
        return -(-elements * _BITS[data_type] // 8)
    try:
        return elements * int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)
    except (KeyError, TypeError) as error:
        raise SplitError(f"elements of type {TensorProto.DataType.Name(data_type)} have no size") from error
