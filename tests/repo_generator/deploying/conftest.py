"""A model in three blocks, and layouts of it made into folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from tests.repo_generator.deploying.sliced_layout import LAYOUT
from tidegate_repo_generator import plugin
from tidegate_repo_generator.splitting.split import split_model

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three blocks of y = -exp(relu(x)) and early = relu(x), which the rest goes on with."""
    folder = tmp_path_factory.mktemp("blocks")
    x, y, early = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y", "early"))
    nodes = [
        helper.make_node("Relu", ["x"], ["early"]),
        helper.make_node("Exp", ["early"], ["e"]),
        helper.make_node("Neg", ["e"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [early, y])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "m.onnx")
    split_model(folder / "m.onnx", folder / "blocks", at=["early", "e"])
    return folder / "blocks"


@pytest.fixture
def run(blocks: Path, tmp_path: Path) -> Run:
    """`run(layout, *options)`: `tidegate generate` with the blocks of m, into `tmp_path / "out"`."""
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("generate")(plugin.tidegate_commands()[0].run)

    def generate(layout: dict[str, Any], *options: object, folder: object = f"m={blocks}") -> Result:
        (tmp_path / "layout.json").write_text(json.dumps(layout))
        arguments = ["generate", tmp_path / "layout.json", "-o", tmp_path / "out", "--blocks", folder, *options]
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return generate


@pytest.fixture
def out(run: Run, tmp_path: Path) -> Path:
    """The folder made of `LAYOUT` for TensorRT."""
    result = run(LAYOUT, "--deploy-target", "tensorrt", "--precision", "fp16")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return tmp_path / "out"
