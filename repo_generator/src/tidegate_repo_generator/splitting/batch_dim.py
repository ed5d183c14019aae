"""Conversion of a fixed batch of 1 to a symbolic batch, where the graph allows."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from onnx import TensorProto, helper

from tidegate_repo_generator.dataflow import Dataflow, Nature, SplitError, errors_of
from tidegate_repo_generator.onnx_file import load_proto, read_onnx, with_inferred_shapes
from tidegate_repo_generator.onnx_sessions import RunError, open_session, run
from tidegate_repo_generator.rows.batch_dim_probe import try_rows
from tidegate_repo_generator.rows.observation import RowsObservation, observe
from tidegate_repo_generator.rows.samples import Sampler, find_samplers, index_limits, read_rows
from tidegate_repo_generator.source import Source, open_source
from tidegate_repo_generator.splitting.symbols import BATCH_SYMBOL

_REMEDY: Final = "export it with a dynamic batch"
_STANDARD: Final = {"", "ai.onnx"}


@contextmanager
def batch_freed(path: Path, real: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield the model with its batch of 1 made symbolic, as a file of the same name in a temporary folder.

    Raises SplitError.
    """
    source = with_symbolic_batch(path, real)
    with tempfile.TemporaryDirectory(prefix="tidegate-batch-") as folder:
        freed = Path(folder, path.name)
        source.save(source.proto, freed)
        yield freed


def with_symbolic_batch(path: Path, real: Sequence[Path] = ()) -> Source:
    """Read a model whose inputs all have a first dimension of 1, and make that dimension symbolic.

    Reshapes to a shape that begins with 1, constant or computed, keep the size of their input instead. Everything else
    is unchanged, and rows in a batch are compared with each of them alone in the original. `real`: files with
    representative inputs. Raises SplitError.
    """
    declared = read_onnx(path).inputs
    for tensor in declared:
        if not tensor.shape or (isinstance(tensor.shape[0], int) and tensor.shape[0] != 1):
            size = tensor.shape[0] if tensor.shape else "that of a scalar"
            raise SplitError(f"--batch-dim frees a batch of 1, and that of input '{tensor.name}' is {size}")
    original = open_source(load_proto(path), path.parent)
    with errors_of(path):
        flow = Dataflow(original.proto)
        session = open_session(original.proto, original.folder)
        given = read_rows(real, declared) if real else None
        sampler = find_samplers(session, declared, index_limits(flow), given=given)[0]
        proto = type(original.proto).FromString(original.proto.SerializeToString())
        source = Source(proto, original.folder, original.external, original)
        _free(source.proto, flow, _observed(flow, original.folder, sampler))
        _compare(session, source, sampler)
    return source


def _observed(flow: Dataflow, folder: Path, sampler: Sampler) -> RowsObservation:
    """Return the inputs of reshapes and their shapes in a run of one row."""
    reshapes = [
        node for node in flow.nodes if node.op_type == "Reshape" and node.domain in _STANDARD and len(node.input) > 1
    ]
    reshapes = [node for node in reshapes if flow.nature_of(node.input[1]) is not Nature.DATA]
    taken, sizes = {node.input[0]: None for node in reshapes}, {node.input[1]: None for node in reshapes}
    return observe(flow, folder, [sampler.rows(1)], taken, sizes)[0]


def _free(model: Any, flow: Dataflow, seen: RowsObservation) -> None:  # noqa: ANN401
    graph = model.graph
    nodes: list[Any] = []
    for number, node in enumerate(graph.node):
        first = _first_size(node, seen)
        if first is not None:
            nodes += _free_shape(model, node, f"tidegate_scheduling/{number}", first, flow, seen)
        nodes.append(node)
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    inferred = {value.name: value for value in with_inferred_shapes(flow.proto).graph.output}
    for value in graph.output:
        if not value.type.tensor_type.HasField("shape") and value.name in inferred:
            value.CopyFrom(inferred[value.name])
    for value in (*graph.input, *graph.output):
        if value.name not in flow.weights and value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = BATCH_SYMBOL
    del graph.value_info[:]  # of a batch of 1


def _first_size(node: Any, seen: RowsObservation) -> int | None:  # noqa: ANN401
    """Return the value that replaces 1 in a reshape to a batch of 1; None for other nodes."""
    if node.op_type != "Reshape" or node.domain not in _STANDARD or len(node.input) < 2:
        return None
    if node.input[1] not in seen.values or any(entry.name == "allowzero" and entry.i for entry in node.attribute):
        return None
    sizes = seen.values[node.input[1]].reshape(-1).tolist()
    if len(sizes) < 2 or sizes[0] != 1:
        return None
    if seen.shapes[node.input[0]][:1] == (1,):
        return 0  # as in the input
    return None if -1 in sizes else -1


def _free_shape(model: Any, node: Any, name: str, first: int, flow: Dataflow, seen: RowsObservation) -> list[Any]:  # noqa: ANN401
    """Have a reshape take a shape that begins so; the nodes that compute it, where it is no constant."""
    shape, node.input[1] = node.input[1], name
    sizes = seen.values[shape].reshape(-1).tolist()
    if flow.nature_of(shape) is Nature.CONSTANT:
        _add_constant(model, name, [first, *sizes[1:]])
        return []
    for key, value in (("first", first), ("start", 1), ("end", len(sizes)), ("axis", 0)):
        _add_constant(model, f"{name}/{key}", [value])
    return [
        helper.make_node("Slice", [shape, f"{name}/start", f"{name}/end", f"{name}/axis"], [f"{name}/others"]),
        helper.make_node("Concat", [f"{name}/first", f"{name}/others"], [name], axis=0),
    ]


def _add_constant(model: Any, name: str, values: list[int]) -> None:  # noqa: ANN401
    model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
    if model.ir_version < 4:  # every initializer is listed among the inputs there
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, [len(values)]))


def _compare(alone: Any, source: Source, sampler: Sampler) -> None:  # noqa: ANN401
    try:
        together = open_session(source.proto, source.folder)
        run(together, sampler.rows(2))
    except RunError as error:
        raise SplitError(f"--batch-dim: the batch of 1 is built into the graph ({error}): {_REMEDY}") from error
    flow = Dataflow(source.proto)
    outputs = [name for name in flow.outputs if flow.nature_of(name) is Nature.DATA]
    verdict = try_rows(lambda feed: run(alone, feed), lambda feed: run(together, feed), sampler, outputs)
    if verdict.batches is False:
        raise SplitError(f"--batch-dim: {verdict.reason}: the batch of 1 is built into the graph; {_REMEDY}")
