"""Inputs to try a model with: random from a seed, in the ranges that the graph allows, or given in a file."""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto

from tidegate_repo_generator.dataflow import Dataflow
from tidegate_repo_generator.model import GenerateError, Tensor
from tidegate_repo_generator.onnx_sessions import Arrays, RunError, run

# Sizes for the dynamic dimensions beyond the first: the first that the model accepts. Vision models mostly want
# multiples of 32, and the windows of convolutions a minimum; the small ones are for everything else.
DYNAMIC_SIZES: Final = (64, 32, 224, 16, 4, 1)
_UNEVEN_SIZE: Final = 21
"""Smallest size of dynamic dimensions that are no multiples of what models divide them by."""
SAMPLE_FILLS: Final = ("drawn", "unit", "ones", "zeros")
"""Contents of arrays: normal floats and integers in range; floats from 0 to 1; all ones; all zeros."""
_MOST_ELEMENTS: Final = 2**24
"""Elements of a row of all inputs; a trial has up to eight rows."""
_NUMPY_TYPES: Final = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "STRING": "str"}
_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}
_SAME_ELEMENTS: Final = frozenset({
    "Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
})  # fmt: skip
"""Operators that pass the elements of their first input on."""


@dataclass(frozen=True)
class Sampler:
    """Source of rows of inputs that a model accepts."""

    inputs: tuple[Tensor, ...]
    size: int = 0
    """Size of every dynamic dimension beyond the first."""
    fill: str = "drawn"
    limits: Mapping[str, int] = field(default_factory=dict)
    """Exclusive upper bounds of integer inputs. Without one values are 0 and 1, valid nearly everywhere."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of dynamic dimensions by name, where these differ."""
    given: Arrays = field(default_factory=dict)
    """Given rows by input; empty: rows are random."""

    def rows(self, count: int, *, seed: int = 0) -> Arrays:
        """Return `count` rows, the same ones for the same seed."""
        if self.given:
            known = len(next(iter(self.given.values())))
            return {name: array[np.arange(count) % known] for name, array in self.given.items()}
        generator = np.random.default_rng(seed)  # noqa: TID251 - this is where its seed is given
        return {tensor.name: self._array(generator, tensor, count) for tensor in self.inputs}

    def _array(self, generator: Any, tensor: Tensor, count: int) -> NDArray[Any]:  # noqa: ANN401
        shape = [count, *(size_of(entry, self.size, self.sizes) for entry in tensor.shape[1:])] if tensor.shape else []
        data_type = _NUMPY_TYPES.get(tensor.data_type, tensor.data_type.lower())
        if self.fill in ("ones", "zeros"):
            values: NDArray[Any] = np.full(shape, int(self.fill == "ones"))
        elif not data_type.startswith("float"):
            values = generator.integers(0, self.limits.get(tensor.name, 2), shape)
        else:
            values = generator.standard_normal(shape) if self.fill == "drawn" else generator.random(shape)
        return values.astype(data_type).astype(object) if data_type == "str" else values.astype(data_type)


def size_of(entry: int | str, size: int, sizes: Mapping[str, int] = MappingProxyType({})) -> int:
    """Return the size of a dimension, `entry`: a number, a name or, such as `past + 1`, a sum of these.

    `size`: of the names without one in `sizes`.
    """
    if isinstance(entry, int):
        return entry
    try:
        tree = ast.parse(entry, mode="eval").body
    except (SyntaxError, ValueError):
        return sizes.get(entry, size)
    value = _evaluate(tree, size, sizes) if isinstance(tree, ast.BinOp) else None
    return sizes.get(entry, size) if value is None or value < 0 else value


def _evaluate(tree: ast.expr, size: int, sizes: Mapping[str, int]) -> int | None:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.Name):
        return sizes.get(tree.id, size)
    if not isinstance(tree, ast.BinOp) or type(tree.op) not in _OPERATORS:
        return None
    left, right = _evaluate(tree.left, size, sizes), _evaluate(tree.right, size, sizes)
    if left is None or right is None or (right == 0 and isinstance(tree.op, ast.Div | ast.FloorDiv)):
        return None
    return _OPERATORS[type(tree.op)](left, right)


def find_samplers(
    session: ort.InferenceSession,
    inputs: tuple[Tensor, ...],
    limits: Mapping[str, int],
    *,
    most: int = 1,
    given: Arrays | None = None,
) -> list[Sampler]:
    """Find up to `most` samplers, of different sizes, whose rows the model accepts. Raises RunError if it accepts none.

    If rows are `given`, only these are tried. `limits`: exclusive upper bounds of integer inputs.
    """
    if given:
        sampler = Sampler(inputs, limits=limits, given=given)
        run(session, sampler.rows(1))
        return [sampler]
    dynamic = any(isinstance(size, str) for tensor in inputs for size in tensor.shape[1:])
    found: list[Sampler] = []
    refusal = "a row of its inputs is too large to be tried"
    first = True
    for fill in SAMPLE_FILLS:
        for size in DYNAMIC_SIZES if dynamic else (0,):
            sampler = Sampler(inputs, size, fill, limits)
            feed = sampler.rows(1)
            if sum(array.size for array in feed.values()) > _MOST_ELEMENTS:
                continue
            try:
                run(session, feed)
            except RunError as error:
                refusal = str(error) if first else refusal
                first = False
                continue
            found.append(sampler)
            if len(found) == most:
                return found
        if found:
            return found
    remedy = ": say sizes that it accepts for its dynamic dimensions, --shape NAME:SIZE,SIZE..." if dynamic else ""
    raise RunError(f"onnxruntime cannot run it here on inputs that were made up ({refusal}){remedy}")


def find_other_sampler(
    session: ort.InferenceSession, inputs: tuple[Tensor, ...], limits: Mapping[str, int], known: Sampler
) -> Sampler | None:
    """Find a sampler with other sizes of the dynamic dimensions than `known`; None if the model accepts none.

    The sizes are uneven, and those of different names differ, where the model accepts that: what holds for sizes that
    are all the same power of 2 need not hold for others. `limits`: exclusive upper bounds of integer inputs.
    """
    dynamic = [size for tensor in inputs for size in tensor.shape[1:] if isinstance(size, str)]
    if not dynamic:
        return None
    unlike = {name: _UNEVEN_SIZE + number for number, name in enumerate(sorted(set(dynamic) - {""}))}
    known_shapes = {name: array.shape for name, array in known.rows(1).items()}
    for size, sizes in ((_UNEVEN_SIZE, unlike), *((size, {}) for size in (_UNEVEN_SIZE, *DYNAMIC_SIZES))):
        for fill in SAMPLE_FILLS if known.given else (known.fill,):
            sampler = Sampler(inputs, size, fill, limits, sizes)
            feed = sampler.rows(1)
            if sum(array.size for array in feed.values()) > _MOST_ELEMENTS or known_shapes == {
                name: array.shape for name, array in feed.items()
            }:
                break
            try:
                run(session, feed)
            except RunError:
                continue
            return sampler
    return None


def index_limits(flow: Dataflow) -> dict[str, int]:
    """Return, for each integer input that indexes tables, the size of the smallest table."""
    sizes = {name: tuple(getattr(tensor, "dims", ())) for name, tensor in flow.weights.items()}
    for node in flow.nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            sizes[node.output[0]] = tuple(node.attribute[0].t.dims)
    readers: dict[str, list[Any]] = {}
    for node in flow.nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    limits = {}
    for value in flow.proto.graph.input:
        if value.name in flow.inputs and value.type.tensor_type.elem_type in (TensorProto.INT64, TensorProto.INT32):
            found = _tables(value.name, readers, sizes)
            if found:
                limits[value.name] = min(found)
    return limits


def _tables(name: str, readers: Mapping[str, list[Any]], sizes: Mapping[str, tuple[int, ...]]) -> list[int]:
    found, waiting, known = [], [name], {name}
    while waiting:
        value = waiting.pop()
        for node in readers.get(value, ()):
            if node.op_type in {"Gather", "GatherElements"} and node.input[1] == value and node.input[0] in sizes:
                axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 0)
                shape = sizes[node.input[0]]
                if -len(shape) <= axis < len(shape):
                    found.append(int(shape[axis]))
            elif node.op_type == "EmbedLayerNormalization" and value in node.input[:2]:
                table = sizes.get(node.input[2 if value == node.input[0] else 4], ())
                found += [int(size) for size in table[:1]]
            elif node.op_type in _SAME_ELEMENTS and (node.input[0] == value or node.op_type == "Concat"):
                waiting += [output for output in node.output if output not in known]
                known.update(node.output)
    return [size for size in found if size > 0]


def read_rows(paths: Iterable[Path], inputs: tuple[Tensor, ...]) -> Arrays:
    """Read representative inputs from several files: a `.npz` has one array per input, a `.npy` that of the only one.

    An array holds rows, or, with one dimension less, a single row. Raises GenerateError.
    """
    parts: dict[str, list[NDArray[Any]]] = {tensor.name: [] for tensor in inputs}
    for path in paths:
        for tensor, array in _read(path, inputs):
            parts[tensor.name].append(_fitting(path, tensor, array))
    try:
        joined = {name: np.concatenate(arrays) for name, arrays in parts.items() if arrays}
    except ValueError as error:
        raise GenerateError(f"--inputs: rows have unlike shapes ({error}): give rows of one shape") from error
    counts = {name: len(array) for name, array in joined.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise GenerateError(f"--inputs: inputs have unlike numbers of rows, {counts}: give each row of every input")
    return joined


def _read(path: Path, inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, NDArray[Any]]]:
    known = {tensor.name: tensor for tensor in inputs}
    try:
        content = np.load(path, allow_pickle=False)
        found = dict(content) if isinstance(content, np.lib.npyio.NpzFile) else {"": content}
    except (OSError, ValueError, EOFError) as error:
        raise GenerateError(
            f"--inputs {path}: it cannot be read ({error}): give a .npz or .npy file of numpy's"
        ) from error
    if "" in found and len(inputs) > 1:
        raise GenerateError(
            f"--inputs {path}: the model has {len(inputs)} inputs ({', '.join(known)}): give a .npz file"
        )
    if "" in found:
        found = {inputs[0].name: found[""]}
    if set(found) != set(known):
        raise GenerateError(
            f"--inputs {path}: it holds {', '.join(sorted(found)) or 'nothing'}: give one array for each of the inputs "
            f"{', '.join(known)}"
        )
    return [(known[name], array) for name, array in found.items()]


def _fitting(path: Path, tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    data_type = _NUMPY_TYPES.get(tensor.data_type, tensor.data_type.lower())
    if array.ndim == len(tensor.shape) - 1:
        array = array[None]
    fits = array.ndim == len(tensor.shape) and all(
        isinstance(declared, str) or declared == size
        for declared, size in zip(tensor.shape[1:], array.shape[1:], strict=True)
    )
    if not fits:
        raise GenerateError(
            f"--inputs {path}: '{tensor.name}' is {list(array.shape)}, and the model's is {tensor.dims} (-1: any): "
            "give rows of that shape"
        )
    if data_type == "str":
        return array.astype(object)
    if array.dtype.kind != np.dtype(data_type).kind and not np.can_cast(array.dtype, data_type, "same_kind"):
        raise GenerateError(f"--inputs {path}: '{tensor.name}' is {array.dtype}, and the model's is {tensor.data_type}")
    return array.astype(data_type)


def part(feed: Mapping[str, NDArray[Any]], start: int, stop: int) -> Arrays:
    """Return the rows `start`..`stop` - 1 of every array."""
    return {name: array[start:stop] for name, array in feed.items()}


def picked(feed: Mapping[str, NDArray[Any]], rows: Iterable[int]) -> Arrays:
    """Return these rows of every array, in this order."""
    order = list(rows)
    return {name: array[order] for name, array in feed.items()}
