"""`tidegate generate`."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import typer
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from tidegate_repo_generator import plugin

RunGenerate = Callable[..., Result]


@pytest.fixture
def run_generate() -> RunGenerate:
    """`run_generate(*arguments)` -> the result, as `tidegate generate` builds it from the plugin."""
    app = typer.Typer()
    app.callback()(lambda: None)
    command = plugin.tidegate_commands()[0]
    app.command(command.name)(command.run)
    return lambda *arguments: CliRunner().invoke(app, ["generate", *map(str, arguments)])


def test_a_table_of_what_was_written(run_generate: RunGenerate, doubler: Path, tmp_path: Path) -> None:
    result = run_generate(doubler, "-o", tmp_path / "models", "--name", "double", "--slo-ms", 2.5)
    assert result.exit_code == 0
    for text in ("double", "1/model.py", "x: FP32 [rows, 4]", "up to 32 rows", "2.5 ms", "embedded"):
        assert text in result.stdout
    assert result.stderr == ""


def test_json_for_machines(run_generate: RunGenerate, doubler: Path, tmp_path: Path) -> None:
    options = ("--max-batch", 8, "--instances", 2, "--deploy-target", "triton", "--json")
    result = run_generate(doubler, "-o", tmp_path / "models", *options)
    assert json.loads(result.stdout) == {
        "name": "model",
        "path": str(tmp_path / "models" / "model"),
        "deploy_target": "triton",
        "max_batch_size": 8,
        "instances": 2,
        "slo_ms": None,
        "inputs": [{"name": "x", "data_type": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "data_type": "FP32", "shape": [-1, 4]}],
        "files": ["1/model.onnx", "config.pbtxt"],
        "notices": [],
    }


def test_a_notice_goes_to_stderr(run_generate: RunGenerate, save_onnx: Callable[..., Path], tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    path = save_onnx([helper.make_node("Relu", ["x"], ["y"])], [x], [y])
    result = run_generate(path, "-o", tmp_path / "models")
    assert result.exit_code == 0
    assert "notice: Not batched: the first dimension of input 'x' is fixed at 1." in result.stderr
    assert "To batch it, free its batch of 1 with --batch-dim" in result.stderr
    assert "none: one request at a time" in result.stdout


def test_a_fixed_batch_of_one_is_freed(
    run_generate: RunGenerate, save_onnx: Callable[..., Path], tmp_path: Path
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    path = save_onnx([helper.make_node("Relu", ["x"], ["y"])], [x], [y])
    result = run_generate(path, "-o", tmp_path / "models", "--batch-dim", "--name", "freed")
    assert result.exit_code == 0, result.stderr
    assert "up to 32 rows" in result.stdout
    session = onnxruntime.InferenceSession(tmp_path / "models/freed/1/model.onnx", providers=["CPUExecutionProvider"])
    rows = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(session.run(None, {"x": rows})[0], np.maximum(rows, 0))
    text = (tmp_path / "models/freed/config.pbtxt").read_text()
    assert f"Written by `tidegate generate` from {path.name!r}" in text
    assert "max_batch_size: 32" in text


def test_a_batch_that_is_built_in_is_not_freed(
    run_generate: RunGenerate, save_onnx: Callable[..., Path], tmp_path: Path
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    path = save_onnx([helper.make_node("Softmax", ["x"], ["y"], axis=0)], [x], [y])
    result = run_generate(path, "-o", tmp_path / "models", "--batch-dim")
    assert result.exit_code == 1
    assert "error: --batch-dim: a row's output 'y' depends on what else is in the batch" in result.stderr
    both = run_generate(path, "-o", tmp_path / "models", "--batch-dim", "--max-batch", 0)
    assert "leave one of them out" in both.stderr
    assert not (tmp_path / "models").exists()


def test_an_error_is_one_line_on_stderr(run_generate: RunGenerate, tmp_path: Path) -> None:
    result = run_generate(tmp_path / "[absent].onnx", "-o", tmp_path / "models")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"error: {tmp_path}/[absent].onnx is not a file: give the path of an ONNX model\n"


def test_force(run_generate: RunGenerate, doubler: Path, tmp_path: Path) -> None:
    assert [run_generate(doubler, "-o", tmp_path / "models").exit_code for _ in range(2)] == [0, 1]
    assert run_generate(doubler, "-o", tmp_path / "models", "--force").exit_code == 0


def test_help_has_an_example(run_generate: RunGenerate) -> None:
    assert "tidegate generate recognize.onnx -o models" in run_generate("--help").stdout
