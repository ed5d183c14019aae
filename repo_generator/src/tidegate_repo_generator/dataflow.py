"""Dataflow of an ONNX model: which values each node reads and writes, and the nature of every value."""

import heapq
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.onnx_sessions import RunError

_RANDOM: Final = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}


_SHAPE_SLOTS: Final = {
    "AffineGrid": (1,), "CenterCropPad": (1,), "ConstantOfShape": (0,), "Expand": (1,), "OneHot": (1,), "Pad": (1,),
    "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,),
    "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip
"""Inputs of operators whose values decide the shape of what they write."""
_SHAPE_ARITHMETIC: Final = {
    "Add", "Cast", "Ceil", "Concat", "Div", "Floor", "Gather", "Identity", "Max", "Min", "Mul", "Reshape", "Slice",
    "Squeeze", "Sub", "Unsqueeze",
}  # fmt: skip
"""Operators with which shapes are computed."""


class SplitError(GenerateError):
    """Error: a model cannot be split. The message names the tensor, node or cut, the cause and the remedy."""


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Convert errors of onnxruntime in the block to SplitError that names the file at `path`.

    Raises SplitError with the file's name.
    """
    try:
        yield
    except RunError as error:
        raise SplitError(f"{path}: {error}") from error


class Nature(IntEnum):
    """Nature of a value: the kind of input that it depends on; of several, the largest counts."""

    CONSTANT = 0
    """Weights and values computed from them alone."""
    SHAPE = 1
    """Values that depend on the shapes of the inputs, not on their contents: recomputed wherever they are needed."""
    DATA = 2
    """Values that depend on the contents of the inputs: computed once."""


@dataclass
class Dataflow:
    """Dataflow of one model. Only the main graph is analyzed: a node with subgraphs counts as one node."""

    proto: Any
    """onnx.ModelProto; its nodes are in topological order (`sort_nodes`)."""
    reads: list[tuple[str, ...]] = field(init=False)
    """For each node, the values that it needs: its inputs and the values that its subgraphs capture."""
    producer: dict[str, int] = field(init=False)
    """Index of the node that makes each value, for values made by nodes."""
    weights: dict[str, Any] = field(init=False)
    """Initializers, dense and sparse, by name."""
    inputs: tuple[str, ...] = field(init=False)
    """Inputs of the model, without initializers that are listed there as default values."""
    outputs: tuple[str, ...] = field(init=False)
    nature: list[Nature] = field(init=False)
    """Nature of the outputs of each node."""
    random: set[int] = field(init=False)
    """Indices of nodes that draw random numbers: these never run twice."""
    data_nodes: list[int] = field(init=False)
    """Indices of nodes that work on data, in order. A cut at position p comes before the p-th of them."""

    def __post_init__(self) -> None:
        """Analyze the graph."""
        graph = self.proto.graph
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.weights |= {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self.inputs = tuple(value.name for value in graph.input if value.name not in self.weights)
        self.outputs = tuple(value.name for value in graph.output)
        self.reads = [tuple(dict.fromkeys(_reads(node))) for node in graph.node]
        self.producer = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
        functions = {(entry.domain, entry.name): entry for entry in self.proto.functions}
        self.random = {i for i, node in enumerate(graph.node) if _draws(node, functions)}
        self.nature = []
        for index, node in enumerate(graph.node):
            nature = max((self.nature_of(name) for name in self.reads[index]), default=Nature.CONSTANT)
            if node.op_type in {"Shape", "Size"} and node.domain in {"", "ai.onnx"}:
                nature = min(nature, Nature.SHAPE)
            self.nature.append(Nature.DATA if index in self.random else nature)
        self.data_nodes = [index for index, nature in enumerate(self.nature) if nature is Nature.DATA]

    @property
    def nodes(self) -> Any:  # noqa: ANN401
        """The nodes of the main graph."""
        return self.proto.graph.node

    def nature_of(self, value: str) -> Nature:
        """Return the nature of a value of the main graph: the kind of input that it depends on."""
        if value in self.weights:
            return Nature.CONSTANT
        return self.nature[self.producer[value]] if value in self.producer else Nature.DATA

    def label(self, index: int) -> str:
        """Return the name of a node for messages: its own, or that of its first output."""
        node = self.nodes[index]
        return str(node.name or next(filter(None, node.output), f"#{index}"))


def shape_inputs(flow: Dataflow) -> dict[str, str]:
    """Find the inputs whose values are shapes, sizes or indices to cut at; map each to the node that uses it so."""
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(flow.nodes):
        for name in node.input:
            readers.setdefault(name, []).append(index)
    found: dict[str, str] = {}
    for name in flow.inputs:
        waiting, known = [name], {name}
        while waiting:
            value = waiting.pop()
            for index in readers.get(value, ()):
                node = flow.nodes[index]
                if any(
                    node.input[slot] == value for slot in _SHAPE_SLOTS.get(node.op_type, ()) if slot < len(node.input)
                ):
                    found.setdefault(name, flow.label(index))
                elif node.op_type in _SHAPE_ARITHMETIC and (node.op_type != "Gather" or node.input[0] == value):
                    waiting += [output for output in node.output if output not in known]
                    known.update(node.output)
    return found


def sort_nodes(proto: Any, where: str) -> None:  # noqa: ANN401
    """Sort the nodes of a model, its subgraphs and its functions topologically; sorted ones stay unchanged.

    ONNX requires this order, but onnxruntime sorts by itself, and exporters rely on that. `where` names the model in
    messages. Raises GenerateError if nodes form a cycle.
    """
    for function in proto.functions:
        _sort(function, where)
    _sort(proto.graph, where)


def _sort(graph: Any, where: str) -> None:  # noqa: ANN401
    for node in graph.node:
        for inner in subgraphs(node):
            _sort(inner, where)
    producer = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    waits: list[set[int]] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(graph.node):
        waits.append({producer[name] for name in _reads(node) if name in producer})
        for source in waits[index]:
            readers.setdefault(source, []).append(index)
    ready = [index for index, sources in enumerate(waits) if not sources]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for index in readers.get(order[-1], ()):
            waits[index].discard(order[-1])
            if not waits[index]:
                heapq.heappush(ready, index)
    if len(order) < len(waits):
        node = graph.node[next(index for index, sources in enumerate(waits) if sources)]
        name = node.name or next(filter(None, node.output), node.op_type)
        raise GenerateError(f"{where}: node '{name}' waits for its own output, in a circle: export the model again")
    if order != list(range(len(order))):
        nodes = [graph.node[index] for index in order]
        copies = [type(node)() for node in nodes]
        for copy, node in zip(copies, nodes, strict=True):
            copy.CopyFrom(node)
        del graph.node[:]
        graph.node.extend(copies)


def _reads(node: Any) -> Iterator[str]:  # noqa: ANN401
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        yield from captured(graph)


def subgraphs(node: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the graphs among a node's attributes: branches of If, bodies of Loop and Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured(graph: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the values that a subgraph, nested ones included, takes from the scopes around it."""
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        yield from (name for name in _reads(node) if name not in known)
        known.update(node.output)
    yield from (value.name for value in graph.output if value.name not in known)


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield these nodes and all nodes in their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def functions_used(nodes: Iterable[Any], functions: dict[tuple[str, str], Any]) -> set[tuple[str, str]]:
    """Return the local functions, by domain and name, that these nodes call, directly or through others."""
    used: set[tuple[str, str]] = set()
    waiting = list(all_nodes(nodes))
    while waiting:
        node = waiting.pop()
        key = (node.domain, node.op_type)
        if key in functions and key not in used:
            used.add(key)
            waiting.extend(all_nodes(functions[key].node))
    return used


def _draws(node: Any, functions: dict[tuple[str, str], Any]) -> bool:  # noqa: ANN401
    called = [inner for key in functions_used([node], functions) for inner in all_nodes(functions[key].node)]
    return any(
        inner.op_type in _RANDOM or (inner.op_type == "Dropout" and len(inner.input) > 2 and inner.input[2])
        for inner in (*all_nodes([node]), *called)
    )
