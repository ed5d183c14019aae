"""A model in two blocks, y = -relu(x), and layouts that cut it or do not."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.proxy.app.actuation.deployment import layout
from tidegate.schemas import Device, Layout, LayoutPartition, LayoutPipeline, LayoutWorker
from tidegate_repo_generator.splitting.split import split_model


def write_blocks(folder: Path) -> Path:
    """Two blocks of y = -relu(x)."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y"))
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["r"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx")
    split_model(folder / "m.onnx", folder / "blocks", at=["r"])
    return folder / "blocks"


def of_blocks(*spans: tuple[int, int]) -> Layout:
    """A worker for each of these blocks of the model."""
    names = [f"m.{first}-{last}" for first, last in spans]
    whole = layout(0).models[0]
    return Layout(
        models=(whole.model_copy(update={"pipelines": (LayoutPipeline(partitions=tuple(names), batch=2),)}),),
        partitions=tuple(
            LayoutPartition(name=name, model="m", blocks=span, latency_ms={"any": (1.0, 2.0)})
            for name, span in zip(names, spans, strict=True)
        ),
        workers=tuple(
            LayoutWorker(name=f"of {name}", device=Device("here", number, "any"), hosts=(name,))
            for number, name in enumerate(names)
        ),
    )
