"""Runs of a model that record the shape of every value, and the values computed from shapes."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner

from tidegate_repo_generator.dataflow import Dataflow, Nature
from tidegate_repo_generator.onnx_file import with_inferred_shapes
from tidegate_repo_generator.onnx_sessions import Arrays, RunError, open_session, run

_SHAPE: Final = "tidegate_shape_of/"
_VALUE: Final = "tidegate_value_of/"
OTHER_ROWS: Final = (*range(4, 34), 64, 257)
"""Numbers of rows at which values computed from shapes are evaluated too: a value that changes there is no constant.

Every batch of up to 32 rows, the default for generated models, is among them.
"""
_MOST_ROUNDS: Final = 8
"""Depth to which decided branches are followed into each other."""
_STANDARD: Final = {"", "ai.onnx"}


@dataclass(frozen=True)
class RowsObservation:
    """Observed shapes and values of one run with `rows` rows."""

    rows: int
    shapes: dict[str, tuple[int, ...]]
    values: Arrays


def observe(
    flow: Dataflow, folder: Path, feeds: Iterable[Arrays], shapes: Iterable[str], values: Iterable[str]
) -> list[RowsObservation]:
    """Run a model on each feed; record the shapes and the contents of the named values. Raises RunError.

    `feeds`: inputs of each run; `shapes`, `values`: names of values whose shape or contents are recorded.
    """
    shapes, values = list(shapes), list(values)
    session = open_session(_instrumented(flow, shapes, values), folder) if shapes or values else None
    seen = []
    for feed in feeds:
        found = run(session, feed) if session else {}
        seen.append(
            RowsObservation(
                len(next(iter(feed.values()))),
                {name: tuple(map(int, found[_SHAPE + name])) for name in shapes},
                {name: found[_VALUE + name] for name in values},
            )
        )
    return seen


def shape_sources(flow: Dataflow) -> list[str]:
    """Return the values at which shape arithmetic begins: sizes of values that depend on the inputs' contents."""
    return [
        node.output[0]
        for index, node in enumerate(flow.nodes)
        if flow.nature[index] is Nature.SHAPE and any(flow.nature_of(name) is Nature.DATA for name in flow.reads[index])
    ]


def at_other_rows(
    flow: Dataflow, folder: Path, seen: list[RowsObservation], wanted: Iterable[str]
) -> list[RowsObservation]:
    """Evaluate the values computed from shapes at `OTHER_ROWS` rows, without running the whole model.

    `seen`: runs, with the values of `shape_sources`. Raises RunError if sizes are not linear in the rows. `wanted`:
    names of the values.
    """
    wanted = [name for name in wanted if flow.nature_of(name) is Nature.SHAPE]
    sources = shape_sources(flow)
    if not wanted or not sources:
        return []
    model = _shape_arithmetic(flow, wanted, sources)
    for value in model.graph.input:
        example = seen[0].values[value.name]
        kind = helper.np_dtype_to_tensor_dtype(example.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, list(example.shape)))
    session = open_session(model, folder) if model.graph.output else None
    found = []
    for rows in OTHER_ROWS:
        feed = {value.name: _extrapolated(value.name, seen, rows) for value in model.graph.input}
        values = run(session, feed) if session else {}
        values |= {name: array for name, array in feed.items() if name in wanted}
        found.append(RowsObservation(rows, {}, values))
    return found


def _shape_arithmetic(flow: Dataflow, wanted: list[str], sources: list[str]) -> Any:  # noqa: ANN401
    """The part of a model between sizes and some values; with the names of its inputs only."""
    needed: set[int] = set()
    taken: dict[str, None] = {}
    weights: dict[str, None] = {}
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name in sources:
            taken[name] = None
        elif name in flow.weights:
            weights[name] = None
        elif name in flow.producer and flow.producer[name] not in needed:
            needed.add(flow.producer[name])
            waiting.extend(flow.reads[flow.producer[name]])
    model = onnx.ModelProto()
    model.ir_version = max(flow.proto.ir_version, 4)  # earlier ones list initializers among the inputs
    model.opset_import.extend(flow.proto.opset_import)
    model.functions.extend(flow.proto.functions)
    graph = model.graph
    graph.name = "shapes"
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in taken)
    graph.node.extend(flow.nodes[index] for index in sorted(needed))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in taken)
    for name in weights:
        tensor = flow.weights[name]
        (graph.initializer if isinstance(tensor, TensorProto) else graph.sparse_initializer).append(tensor)
    return model


def _extrapolated(name: str, seen: list[RowsObservation], rows: int) -> Any:  # noqa: ANN401
    """Return a size at another number of rows: sizes are constant, or proportional to rows."""
    known = {each.rows: each.values[name].astype(np.int64) for each in seen}
    first, second = sorted(known)[-2:]
    growth = (known[second] - known[first]) // (second - first)
    for count, array in known.items():
        if array.shape != growth.shape or not np.array_equal(known[second] + growth * (count - second), array):
            raise RunError(f"the size '{name}' does not grow evenly with the rows")
    return (known[second] + growth * (rows - second)).astype(seen[0].values[name].dtype)


def not_tensors(flow: Dataflow) -> set[str]:
    """Return the values that are sequences, maps or optionals, as far as inference knows them."""
    graph = with_inferred_shapes(flow.proto).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name for value in values if value.type.WhichOneof("value") not in {"tensor_type", None}}


def flattened(proto: Any, folder: Path, feeds: list[Arrays]) -> Any:  # noqa: ANN401
    """Build a copy without calls of local functions, and without branches that do not depend on the inputs' contents.

    `proto`: the model. `feeds`: inputs with different numbers of rows. A branch is taken if the condition is the same
    for all. Raises RunError.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    if model.functions:
        model = inliner.inline_local_functions(model)
    for round_number in range(_MOST_ROUNDS):
        flow = Dataflow(model)
        open_branches = [
            (index, node)
            for index, node in enumerate(flow.nodes)
            if node.op_type == "If" and node.domain in _STANDARD and flow.nature_of(node.input[0]) is not Nature.DATA
        ]
        if not open_branches:
            break
        conditions = {node.input[0] for _, node in open_branches}
        runs = observe(flow, folder, feeds, (), conditions | set(shape_sources(flow)))
        runs += at_other_rows(flow, folder, runs, conditions)
        decided: dict[int, bool] = {}
        for index, node in open_branches:
            taken = {bool(each.values[node.input[0]].reshape(-1)[0]) for each in runs}
            if len(taken) == 1:
                decided[index] = taken.pop()
        if not decided:
            break
        nodes: list[Any] = []
        for index, node in enumerate(flow.nodes):
            nodes += [node] if index not in decided else _branch(node, decided[index], f"branch{round_number}_{index}/")
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)
    return model


def _instrumented(flow: Dataflow, shapes: list[str], values: list[str]) -> Any:  # noqa: ANN401
    model = onnx.ModelProto()
    model.CopyFrom(flow.proto)
    del model.graph.output[:]
    for name in shapes:
        model.graph.node.append(helper.make_node("Shape", [name], [_SHAPE + name]))
        model.graph.output.append(helper.make_tensor_value_info(_SHAPE + name, TensorProto.INT64, None))
    for name in values:
        model.graph.node.append(helper.make_node("Identity", [name], [_VALUE + name]))
        model.graph.output.append(onnx.ValueInfoProto(name=_VALUE + name))
    if not any(entry.domain in _STANDARD for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 13))
    return model


def _branch(node: Any, condition: bool, prefix: str) -> list[Any]:  # noqa: ANN401
    """The nodes of the branch that is taken, under names of their own, in the place of an If."""
    wanted = "then_branch" if condition else "else_branch"
    graph = next(entry.g for entry in node.attribute if entry.name == wanted)
    own = {name for inner in graph.node for name in inner.output if name}
    own |= {tensor.name for tensor in graph.initializer} | {tensor.values.name for tensor in graph.sparse_initializer}
    nodes = [helper.make_node("Constant", [], [prefix + tensor.name], value=tensor) for tensor in graph.initializer]
    nodes += [
        helper.make_node("Constant", [], [prefix + tensor.values.name], sparse_value=tensor)
        for tensor in graph.sparse_initializer
    ]
    for inner in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        _rename(copy, own, prefix)
        nodes.append(copy)
    for value, name in zip(graph.output, node.output, strict=False):
        if name:
            source = prefix + value.name if value.name in own else value.name
            nodes.append(helper.make_node("Identity", [source], [name]))
    return nodes


def _rename(node: Any, own: set[str], prefix: str) -> None:  # noqa: ANN401
    """Rename a branch's own values wherever they are read, subgraphs included, and where this node makes them."""
    for names in (node.input, node.output):
        for place, name in enumerate(names):
            if name in own:
                names[place] = prefix + name
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            hidden = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            hidden |= {name for inner in graph.node for name in inner.output}
            for inner in graph.node:
                _rename(inner, own - hidden, prefix)
            for value in graph.output:
                if value.name in own - hidden:
                    value.name = prefix + value.name
