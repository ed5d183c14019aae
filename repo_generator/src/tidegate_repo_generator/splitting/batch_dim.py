"""Making a fixed batch of 1 symbolic, where the graph allows."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tidegate_repo_generator.model import Tensor
from tidegate_repo_generator.onnx_file import load_proto, read_onnx, with_inferred_shapes
from tidegate_repo_generator.splitting.graph import SplitError
from tidegate_repo_generator.splitting.inputs import accepted_sizes, open_session, part, run
from tidegate_repo_generator.splitting.source import open_source
from tidegate_repo_generator.splitting.symbols import BATCH
from tidegate_repo_generator.trial import differs, first_line, random_rows


@contextmanager
def batch_freed(path: Path) -> Iterator[Path]:
    """The model with its batch of 1 made symbolic, as a file of the same name in a folder that goes with the block.

    Raises SplitError.
    """
    source = open_source(with_symbolic_batch(path), path.parent)
    with tempfile.TemporaryDirectory(prefix="tidegate-batch-") as folder:
        freed = Path(folder, path.name)
        source.save(source.proto, freed)
        yield freed


def with_symbolic_batch(path: Path) -> Any:  # noqa: ANN401
    """Read a model whose inputs all have a first dimension of 1, and make that dimension symbolic.

    Reshapes to a constant shape that begins with 1 keep the size of their input instead. Everything else is left as
    it is, and two rows together are compared with each of them alone in the original. Raises SplitError.
    """
    declared = read_onnx(path).inputs
    for tensor in declared:
        if isinstance(tensor.shape[0], int) and tensor.shape[0] != 1:
            raise SplitError(f"--batch-dim frees a batch of 1, and that of input '{tensor.name}' is {tensor.shape[0]}")
    model = load_proto(path)
    _free_reshapes(model)
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.output):
        if value.name not in weights:
            value.type.tensor_type.shape.dim[0].dim_param = BATCH
    del model.graph.value_info[:]  # of a batch of 1
    _compare(load_proto(path), model, declared, path.parent)
    return model


def _free_reshapes(model: Any) -> None:  # noqa: ANN401
    graph = model.graph
    shapes = {
        value.name: [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *with_inferred_shapes(model).graph.value_info)
    }
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {
        node.output[0]: node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
    }
    for number, node in enumerate(graph.node):
        if node.op_type != "Reshape" or len(node.input) < 2 or node.input[1] not in constants:
            continue
        if any(entry.name == "allowzero" and entry.i for entry in node.attribute):
            continue
        sizes = numpy_helper.to_array(constants[node.input[1]]).tolist()
        if len(sizes) < 2 or sizes[0] != 1:
            continue
        if shapes.get(node.input[0], [0])[:1] == [1]:
            sizes[0] = 0  # as in the input
        elif -1 not in sizes:
            sizes[0] = -1
        else:
            continue
        name = f"tidegate_batch/{number}"
        graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(sizes)], np.array(sizes)))
        if model.ir_version < 4:  # every initialiser is listed among the inputs there
            graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, [len(sizes)]))
        node.input[1] = name


def _compare(original: Any, model: Any, declared: tuple[Tensor, ...], folder: Path) -> None:  # noqa: ANN401
    remedy = "export it with a dynamic batch"
    session = open_session(original, folder)
    size = accepted_sizes(session, declared)[0]
    feed = random_rows(declared, 2, size)
    alone = [run(session, part(feed, row, row + 1)) for row in range(2)]
    try:
        together = run(open_session(model, folder), feed)
    except Exception as error:
        why = f"--batch-dim: the batch of 1 is built into the graph ({first_line(error)})"
        raise SplitError(f"{why}: {remedy}") from error
    for name, array in together.items():
        expected = np.concatenate([row[name] for row in alone]) if alone[0][name].ndim else alone[0][name]
        if array.shape != expected.shape or (array.dtype.kind == "f" and differs(expected, array)):
            raise SplitError(
                f"--batch-dim: with two rows, output '{name}' {list(array.shape)} is not that of each row alone "
                f"{list(expected.shape)}: the batch of 1 is built into the graph; {remedy}"
            )
