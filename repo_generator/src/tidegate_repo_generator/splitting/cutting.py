"""Cuts of a model: the nodes between two cuts, the tensors that cross, and the values that are recomputed.

Only data with the batch first crosses a cut. Weights and constants are repeated wherever they are needed. Shape
arithmetic is recomputed from tensors of the same span; where these are missing, a shape vector whose elements are known
is rebuilt from the sizes of tensors that do cross. Other data, say a transposed tensor, is recomputed if that only
moves data; else it crosses transposed, or the cut is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tidegate_repo_generator.dataflow import Dataflow, Nature, SplitError, subgraphs
from tidegate_repo_generator.splitting.probing import Probe
from tidegate_repo_generator.splitting.symbols import KnownShape, known_values

# Too costly to run twice for the sake of a cut.
_COSTLY: Final = frozenset({
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DFT", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul",
    "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "Resize", "STFT", "TopK",
})  # fmt: skip


class CutRefused(SplitError):
    """Error: a cut at a position is impossible; the message names the value that prevents it, and the reason."""


@dataclass(frozen=True)
class RebuiltShape:
    """Shape vector that is rebuilt from the sizes of other tensors."""

    value: KnownShape
    sources: dict[str, tuple[str, int]]
    """Symbol -> a tensor of the span's inputs, and the dimension that has that size."""


@dataclass
class NodeSpan:
    """Nodes on data between two positions, and all that they need."""

    start: int
    stop: int
    nodes: set[int] = field(default_factory=set)
    """Indices of all nodes, repeated ones included."""
    inputs: set[str] = field(default_factory=set)
    """Names of the values that it takes from before `start`."""
    rebuilt: dict[str, RebuiltShape] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)


@dataclass
class Cutter:
    """Possible cuts of a model. Positions count nodes on data: a cut at p comes before the p-th of them."""

    flow: Dataflow
    probe: Probe

    def __post_init__(self) -> None:
        """Order the values."""
        self._rank = dict.fromkeys(self.flow.inputs, -1)
        for rank, index in enumerate(self.flow.data_nodes):
            self._rank |= dict.fromkeys(filter(None, self.flow.nodes[index].output), rank)

    @property
    def end(self) -> int:
        """Position after the last node."""
        return len(self.flow.data_nodes)

    def rank(self, value: str) -> int:
        """Return the position of the node on data that makes a value; -1 for an input of the model."""
        return self._rank[value]

    def position_after(self, tensor: str) -> int:
        """Return the position right after the node that makes a tensor. Raises SplitError."""
        if self._rank.get(tensor, -1) >= 0:
            return self._rank[tensor] + 1
        if tensor in self._rank:
            raise SplitError(f"'{tensor}' is an input of the model: a cut comes after a node of it")
        if tensor in self.flow.producer:
            raise SplitError(f"'{tensor}' does not depend on what the inputs contain: cut after a tensor that does")
        near = [name for name, rank in self._rank.items() if rank >= 0 and tensor.lower() in name.lower()][:5]
        hint = f"; near: {', '.join(near)}" if near else ""
        raise SplitError(f"no node of the main graph makes the tensor '{tensor}'{hint}")

    def crossing(self, position: int, keep: Iterable[str] = ()) -> frozenset[str]:
        """Return the values that must cross a cut: data made before it from which all after it can be computed.

        `keep`: values that cross the next cut; those made before this one cross here too. Raises CutRefused.
        """
        kept = {value for value in keep if self._rank[value] < position}
        span = self._resolve(position, self.end, kept, grow=True)
        if not span.inputs:
            raise CutRefused(f"nothing that depends on the inputs would cross the cut {self.where(position)}")
        return frozenset(span.inputs)

    def bytes_per_row(self, position: int) -> int:
        """Return the bytes per row that cross a cut. Raises CutRefused."""
        return sum(self.probe.boundary(value).bytes_per_row for value in self.crossing(position))

    def crossings(self, positions: Iterable[int]) -> list[frozenset[str]]:
        """Return the values that cross each of the cuts at `positions`, so that any two may bound a partition."""
        found: list[frozenset[str]] = []
        for position in sorted(positions, reverse=True):
            found.append(self.crossing(position, found[-1] if found else ()))
        return found[::-1]

    def span(self, start: int, stop: int, crossing: frozenset[str]) -> NodeSpan:
        """Return the nodes between two cuts. `crossing`: values available at the first cut.

        `start`, `stop`: numbers of the two cuts.
        """
        return self._resolve(start, stop, set(crossing), grow=False)

    def outputs(self, start: int, stop: int, crossing: frozenset[str]) -> list[str]:
        """Return the values made in a span that cross the cut after it (`crossing`) or are outputs of the model.

        `start`, `stop`: numbers of the cuts around the span.
        """
        wanted = [value for value in crossing if start <= self._rank[value] < stop]
        last = stop == self.end
        # What the model puts out without looking at data has no place of its own: the last span makes it.
        nowhere = self.end - 1 if last else -1
        # An input that comes back as an output is given by the first span, which takes it.
        ranks = {name: 0 if name in self.flow.inputs else self._rank.get(name, nowhere) for name in self.flow.outputs}
        ends = [name for name, rank in ranks.items() if start <= rank < stop]
        return sorted(set(wanted) - set(ends), key=self.order) + ends

    def order(self, value: str) -> tuple[int, str]:
        """Return a sort key that orders values by where they are made."""
        return self._rank[value], value

    def where(self, position: int) -> str:
        """Describe a cut for messages."""
        before = self.flow.label(self.flow.data_nodes[position - 1]) if position else "the inputs"
        return f"after '{before}' (position {position} of {self.end})"

    @cached_property
    def _known(self) -> dict[str, KnownShape]:
        return known_values(self.flow, self.probe.symbols.shapes)

    @cached_property
    def _roots(self) -> dict[str, frozenset[str]]:
        """For values of nature SHAPE: whose shapes they come from."""
        roots: dict[str, frozenset[str]] = {}
        for index, node in enumerate(self.flow.nodes):
            if self.flow.nature[index] is Nature.SHAPE:
                merged = frozenset[str]().union(
                    *(roots.get(name, {name} if name in self._rank else ()) for name in self.flow.reads[index])
                )
                roots |= dict.fromkeys(filter(None, node.output), merged)
        return roots

    def _resolve(self, start: int, stop: int, offered: set[str], *, grow: bool) -> NodeSpan:
        return _Resolution(self, NodeSpan(start, stop), offered, self._known, self._roots, grow).span


@dataclass
class _Resolution:
    """One walk back from the nodes of a span to its inputs."""

    cutter: Cutter
    span: NodeSpan
    offered: set[str]
    """Values that may become inputs for the sake of their shape."""
    known: dict[str, KnownShape]
    roots: dict[str, frozenset[str]]
    grow: bool
    """Take all of what is offered."""

    def __post_init__(self) -> None:
        """Walk. Data first, for shapes are taken from the data that is there."""
        flow, span = self.cutter.flow, self.span
        self._seen: set[str] = set()
        self._shapes: list[str] = []
        span.nodes.update(flow.data_nodes[span.start : span.stop])
        if self.grow:
            span.inputs.update(self.offered)
        elif span.start == 0:
            # Clients send every input of the model, also those that only come back, or that no node reads.
            read = {name for reads in flow.reads for name in reads} - set(flow.outputs)
            span.inputs.update(set(flow.inputs) - read)
        for index in flow.data_nodes[span.start : span.stop]:
            self._need_all(index)
        if span.stop == self.cutter.end:
            for name in flow.outputs:
                if flow.nature_of(name) is not Nature.DATA:
                    self._need(name)
        while self._shapes:
            self._need_shape(self._shapes.pop())

    def _need_all(self, index: int) -> None:
        for name in self.cutter.flow.reads[index]:
            self._need(name)

    def _need(self, name: str) -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        flow, span = self.cutter.flow, self.span
        if name in flow.weights:
            span.weights.add(name)
        elif flow.nature_of(name) is Nature.CONSTANT:
            self._include(flow.producer[name])
        elif flow.nature_of(name) is Nature.SHAPE:
            self._shapes.append(name)
        elif not self._is_own(name):
            if name in self.cutter.probe.batched:
                span.inputs.add(name)
            else:
                self._repeat(name)

    def _is_own(self, name: str) -> bool:
        return self.span.start <= self.cutter.rank(name) < self.span.stop

    def _include(self, index: int) -> None:
        self.span.nodes.add(index)
        self._need_all(index)

    def _repeat(self, name: str) -> None:
        """Compute data again that cannot cross."""
        flow = self.cutter.flow
        index = flow.producer[name]
        node = flow.nodes[index]
        why = self.cutter.probe.unbatched.get(name, "its shape is unknown")
        if index in flow.random:
            again = f"it draws random numbers ({node.op_type})"
        elif node.op_type in _COSTLY:
            again = f"{node.op_type} takes too long to run twice"
        elif node.domain not in {"", "ai.onnx"} or any(True for _ in subgraphs(node)):
            again = f"{node.op_type} may take too long to run twice"
        else:
            self._include(index)
            return
        if name in self.cutter.probe.movable:
            self.span.inputs.add(name)
            return
        raise CutRefused(
            f"there is no cut {self.cutter.where(self.span.start)}: '{name}' would have to cross it, but {why}; and it "
            f"cannot be computed again behind it, for {again}. Cut elsewhere"
        )

    def _need_shape(self, name: str) -> None:
        span = self.span
        if all(root in span.inputs or self._is_own(root) for root in self.roots[name]):
            self._include(self.cutter.flow.producer[name])
        elif (rebuilt := self._rebuild(name)) is not None:
            span.rebuilt[name] = rebuilt
        else:
            # One step back: what it is made of may be rebuilt, and the tensors whose shapes are taken may cross.
            self._include(self.cutter.flow.producer[name])

    def _rebuild(self, name: str) -> RebuiltShape | None:
        value = self.known.get(name)
        if value is None or None in value.elements:
            return None
        sources: dict[str, tuple[str, int]] = {}
        shapes = self.cutter.probe.symbols.shapes
        for symbol in {element for element in value.elements if isinstance(element, str)}:
            for tensor in (*sorted(self.span.inputs), *sorted(self.offered)):
                if symbol in shapes.get(tensor, ()):
                    sources[symbol] = (tensor, shapes[tensor].index(symbol))
                    break
            else:
                return None
        self.span.inputs.update(tensor for tensor, _ in sources.values())
        return RebuiltShape(value, sources)
