"""Batch dimension tracking: finds the dimension of every value of a graph along which the rows lie.

The analysis is sound where it says that rows are independent: every operator on the path is known not to let a row
influence another (`rules`). The shapes come from two runs with different numbers of rows, because reshapes and products
of sizes cannot be resolved statically. Values computed from shapes alone are compared between the runs: a value that is
the same for every number of rows, or repeats from row to row, carries nothing from one row to another.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tidegate_repo_generator.dataflow import Dataflow, Nature
from tidegate_repo_generator.rows.observation import RowsObservation

STANDARD_DOMAINS: Final = frozenset({"", "ai.onnx"})
ANALYZED_ROWS: Final = (1, 2, 3, 8)
VALUE_SLOTS: Final[dict[str, tuple[int, ...]]] = {
    "CumSum": (1,), "CumProd": (1,), "DFT": (2,), "OneHot": (1,), "Pad": (1, 3), "ReduceL1": (1,), "ReduceL2": (1,),
    "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceMax": (1,), "ReduceMean": (1,), "ReduceMin": (1,),
    "ReduceProd": (1,), "ReduceSum": (1,), "ReduceSumSquare": (1,), "Reshape": (1,), "ScatterND": (1,),
    "Slice": (1, 2, 3, 4), "Split": (1,), "Tile": (1,), "TopK": (1,), "Dropout": (2,),
}  # fmt: skip
"""Inputs, by operator, whose contents the rules inspect, constants included."""


class MixesError(Exception):
    """Error: an operator lets rows influence each other. The message is a clause."""


class UnknownError(Exception):
    """Error: it is unknown whether an operator lets rows influence each other. The message is a clause."""


@dataclass(frozen=True)
class RowAxis:
    """Position of the rows in a value: along one dimension, in which the row is a mixed-radix digit.

    The size of that dimension is `outer` * rows * `inner`; [rows * heads, ...] has `inner` = heads.
    """

    axis: int
    outer: int = 1
    inner: int = 1

    def moved(self, axis: int) -> "RowAxis":
        """Return the same digit in another dimension."""
        return RowAxis(axis, self.outer, self.inner)


@dataclass
class NodeView:
    """View of a graph's node for the rules of row axes: its inputs, their shapes and contents in the runs."""

    analysis: "RowAnalysis"
    node: Any
    attributes: dict[str, Any]

    @property
    def opset(self) -> int:
        """Version of the node's operator domain."""
        return self.analysis.opsets.get("" if self.node.domain in STANDARD_DOMAINS else self.node.domain, 1)

    def has(self, slot: int) -> bool:
        """Return whether an optional input is present."""
        return slot < len(self.node.input) and bool(self.node.input[slot])

    def slots(self) -> list[int]:
        """Return the indices of the inputs that are present."""
        return [slot for slot in range(len(self.node.input)) if self.node.input[slot]]

    def shape(self, slot: int, run: int = 0) -> tuple[int, ...]:
        """Return the shape of an input in one of the runs."""
        return self.analysis.shape(self.node.input[slot], run)

    def rank(self, slot: int) -> int:
        """Return the number of dimensions of an input."""
        return len(self.shape(slot))

    def out_shape(self, slot: int = 0, run: int = 0) -> tuple[int, ...]:
        """Return the shape of an output in one of the runs."""
        return self.analysis.shape(self.node.output[slot], run)

    def rows(self, slot: int) -> RowAxis | None:
        """Return the row axis of an input, or None if the input does not depend on the batch."""
        return self.analysis.rows_of(self.node.input[slot])

    def agrees(self, slot: int, state: RowAxis) -> bool:
        """Return whether an input has its rows at `state`, or repeats along it from row to row."""
        name = self.node.input[slot]
        if self.analysis.flow.nature_of(name) is Nature.SHAPE:
            return _shared(self.analysis.known(name), state)
        return self.rows(slot) == state

    def is_data(self, slot: int) -> bool:
        """Return whether an input depends on the contents of the model's inputs."""
        return self.analysis.flow.nature_of(self.node.input[slot]) is Nature.DATA

    def value(self, slot: int, run: int = 0) -> NDArray[Any]:
        """Return the contents of an input that does not depend on data.

        Raises UnknownError if it depends on data.
        """
        if self.is_data(slot):
            raise UnknownError(f"its '{self.node.input[slot]}' depends on the inputs' contents")
        value = self.analysis.seen[run].values.get(self.node.input[slot])
        if value is None:
            raise UnknownError(f"its '{self.node.input[slot]}' was not seen")
        return value

    def counts(self) -> list[int]:
        """Return the numbers of rows of the runs, then those at which values computed from shapes are known."""
        return [run.rows for run in (*self.analysis.seen, *self.analysis.others)]

    def at(self, slot: int, count: int) -> list[int]:
        """Return the contents, as integers, of an input that does not depend on data, for a number of rows."""
        self.value(slot)
        known = dict(self.analysis.known(self.node.input[slot]))
        return [int(entry) for entry in known.get(count, next(iter(known.values()))).reshape(-1)]

    def same_but(self, slot: int, rows: RowAxis | None) -> None:
        """Check that no size depends on the number of rows, except that of the row dimension.

        Raises UnknownError if one does.
        """
        name = self.node.input[slot]
        if self.analysis.flow.nature_of(name) is not Nature.SHAPE:
            return
        place = -1 if rows is None else rows.axis
        sizes = {
            tuple(np.delete(array, place) if 0 <= place < array.size else array)
            for _, array in self.analysis.known(name)
        }
        if len(sizes) > 1:
            raise UnknownError(f"its '{name}' depends on the number of rows")

    def fixed(self, slot: int) -> list[int]:
        """Return the contents, as integers, of an input that must be equal for every number of rows.

        Raises UnknownError if it is not.
        """
        values = [self.value(slot)]
        if not self.is_data(slot):
            values += [array for _, array in self.analysis.known(self.node.input[slot])]
        if not all(_same(values[0], value) for value in values[1:]):
            raise UnknownError(f"its '{self.node.input[slot]}' depends on the number of rows")
        return [int(entry) for entry in np.asarray(values[0]).reshape(-1)]

    def together(self, places: Iterable[tuple[int, RowAxis | None, int]]) -> RowAxis | None:
        """Return the row axis of a result computed elementwise from several inputs.

        Raises MixesError if the inputs' row axes differ. `places`: for each an input, its row axis, and the shift of
        its dimensions in the result.
        """
        found: RowAxis | None = None
        shifted = [(slot, rows.moved(rows.axis + shift), shift) for slot, rows, shift in places if rows is not None]
        shifted.sort(key=lambda entry: not self.is_data(entry[0]))
        for slot, rows, shift in shifted:
            if found is None:
                found = rows
            elif rows != found and not (
                not self.is_data(slot) and found.axis >= shift and self.agrees(slot, found.moved(found.axis - shift))
            ):
                raise MixesError(
                    "it has the rows of its inputs in different dimensions, so that each meets every other"
                )
        return found

    def fixed_but(self, *slots: int) -> None:
        """Raise MixesError or UnknownError if any input but `slots` has rows."""
        for slot in self.slots():
            if slot not in slots and self.rows(slot) is not None:
                raise UnknownError(f"its '{self.node.input[slot]}' comes from the inputs")

    def axis(self, default: int, rank: int | None = None) -> int:
        """Return the attribute `axis` as a non-negative index. `rank`: dimensions; None: those of the first input."""
        rank = self.rank(0) if rank is None else rank
        return int(self.attributes.get("axis", default)) % max(rank, 1)


States = list[RowAxis | None]
"""Row axis of each output of a node; None: the output does not depend on the batch."""
Rule = Callable[[NodeView], States]
"""Function that returns the row axes of a node's outputs. Raises MixesError or UnknownError."""


@dataclass
class RowAnalysis:
    """Analysis of one graph, node by node, with the row axes found so far."""

    flow: Dataflow
    seen: list[RowsObservation]
    others: list[RowsObservation] = field(default_factory=list)
    """Values computed from shapes, at other numbers of rows."""
    opsets: dict[str, int] = field(default_factory=dict)
    _states: dict[str, RowAxis | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with the inputs, whose rows come first."""
        self.opsets = {
            "" if entry.domain in STANDARD_DOMAINS else entry.domain: entry.version
            for entry in self.flow.proto.opset_import
        }
        self._states |= dict.fromkeys(self.flow.inputs, RowAxis(0))
        self._weights = {name: tuple(getattr(tensor, "dims", ())) for name, tensor in self.flow.weights.items()}

    def is_read(self, name: str) -> bool:
        """Return whether a node or the model's caller reads a value."""
        return name in self.flow.outputs or any(name in reads for reads in self.flow.reads)

    def shape(self, name: str, run: int) -> tuple[int, ...]:
        """Return the shape of a value in one of the runs.

        Raises UnknownError if it was not observed.
        """
        if name in self._weights:
            return self._weights[name]
        shapes, values = self.seen[run].shapes, self.seen[run].values
        if name in shapes:
            return shapes[name]
        if name in values:
            return values[name].shape
        raise UnknownError(f"the shape of '{name}' was not seen")

    def rows_of(self, name: str) -> RowAxis | None:
        """Return the row axis of a value. Raises UnknownError if it is not known."""
        if name in self._states:
            return self._states[name]
        match self.flow.nature_of(name):
            case Nature.CONSTANT:
                return None
            case Nature.SHAPE:
                self._states[name] = self._of_shapes(name)
                return self._states[name]
        raise UnknownError(f"where '{name}' has its rows is not known")

    def known(self, name: str) -> list[tuple[int, NDArray[Any]]]:
        """Return a value that does not depend on data, with the number of rows of each run.

        Raises UnknownError if it depends on data.
        """
        if not all(name in run.values for run in self.seen):
            raise UnknownError(f"'{name}' was not seen")
        return [(run.rows, run.values[name]) for run in (*self.seen, *self.others) if name in run.values]

    def follow(self, index: int, rule: Any) -> None:  # noqa: ANN401
        """Apply the rule of a node, and check its result against the runs."""
        node = self.flow.nodes[index]
        attributes = {
            entry.name: helper.get_attribute_value(entry) for entry in node.attribute if not entry.ref_attr_name
        }
        found = rule(NodeView(self, node, attributes))
        for place, name in enumerate(node.output):
            if not name or (place >= len(found) and len(found) > 1):
                continue
            state = found[place] if len(found) > 1 else found[0]
            self._check(name, state)
            self._states[name] = state

    def _check(self, name: str, state: RowAxis | None) -> None:
        shapes = [(run.rows, self.shape(name, number)) for number, run in enumerate(self.seen)]
        if state is None:
            fits = len({shape for _, shape in shapes}) == 1
        else:
            axis = state.axis
            fits = (
                all(axis < len(shape) and shape[axis] == state.outer * rows * state.inner for rows, shape in shapes)
                and len({(*shape[:axis], *shape[axis + 1 :]) for _, shape in shapes}) == 1
            )
        if not fits:
            listed = " and ".join(f"{list(shape)} for {rows}" for rows, shape in shapes)
            raise UnknownError(f"the shape of '{name}' is {listed} rows")

    def _of_shapes(self, name: str) -> RowAxis | None:
        """Where a value that follows from shapes has its rows: they must all be the same."""
        known = self.known(name)
        if all(_same(known[0][1], array) for _, array in known[1:]):
            return None
        ranks = {array.ndim for _, array in known}
        for axis in range(known[0][1].ndim if len(ranks) == 1 else 0):
            size = known[0][1].shape[axis] // known[0][0]
            for outer in (divisor for divisor in range(1, size + 1) if size % divisor == 0):
                state = RowAxis(axis, outer, size // outer)
                if _shared(known, state):
                    return state
        raise UnknownError(f"'{name}' depends on the number of rows")


def flat_stride(shape: tuple[int, ...], rows: RowAxis) -> int:
    """Return the distance between consecutive rows, in elements."""
    return rows.inner * math.prod(shape[rows.axis + 1 :])


def _shared(known: list[tuple[int, NDArray[Any]]], state: RowAxis) -> bool:
    """Whether a value has the same part for each row, in every run."""
    parts = [_row_of(array, rows, state) for rows, array in known]
    present = [part for part in parts if part is not None]
    return len(present) == len(parts) and all(_same(present[0], part) for part in present[1:])


def _row_of(array: NDArray[Any], rows: int, state: RowAxis) -> NDArray[Any] | None:
    """The part that each row has, where all have the same; else None."""
    if array.shape[state.axis] != state.outer * rows * state.inner:
        return None
    before, after = array.shape[: state.axis], array.shape[state.axis + 1 :]
    apart = array.reshape(*before, state.outer, rows, state.inner, *after)
    first = np.take(apart, [0], axis=len(before) + 1)
    return first if _same(np.broadcast_to(first, apart.shape), apart) else None


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.shape == right.shape and bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))
