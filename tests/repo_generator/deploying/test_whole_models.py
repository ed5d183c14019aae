"""Layouts of models that are not cut: `--blocks MODEL=FILE.onnx`, and the sizes that TensorRT is told of partitions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import InferenceServerClient, InferInput
from typer.testing import Result

from tidegate.schemas import Layout, read_document
from tidegate_repo_generator.splitting.split import split_model

Run = Callable[..., Result]
SaveOnnx = Callable[..., Path]


def layout(*models: str, blocks: int = 1) -> dict[str, Any]:
    """Each model on a MIG instance of its own."""
    workers = [
        {
            "name": f"w{start}",
            "device": {"node": "n", "id": 0, "product": "A100"},
            "slice": {"type": "mig", "profile": "1g.5gb", "start": start},
            "hosts": [name],
        }
        for start, name in enumerate(models)
    ]
    latency = {"A100/1g.5gb": [1, 1, 1, 1]}
    return {
        "models": [{"name": name, "pipelines": [{"partitions": [name], "batch": 4}]} for name in models],
        "partitions": [{"name": name, "model": name, "blocks": [0, blocks], "latency_ms": latency} for name in models],
        "workers": workers,
    }


def plus(save_onnx: SaveOnnx, name: str, value: float, **options: Any) -> Path:
    """`y = x + value` over FP32 [batch, 4], with `value` among the weights."""
    x, y = (helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", 4]) for tensor in "xy")
    weights = [numpy_helper.from_array(np.full(4, value, np.float32), "w")]
    return save_onnx([helper.make_node("Add", ["x", "w"], ["y"])], [x], [y], weights, name, **options)


def test_they_are_answered_from_their_files(
    run: Run, save_onnx: SaveOnnx, tmp_path: Path, start_triton: Callable[..., Any]
) -> None:
    """Both keep their weights in files of one name."""
    beside = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    one = plus(save_onnx, "one.onnx", 1, **beside)
    two = plus(save_onnx, "two.onnx", 2)
    result = run(layout("one", "two"), "--blocks", f"two={two}", folder=f"one={one}")
    assert result.exit_code == 0, result.stderr
    out = tmp_path / "out"
    one.with_name("weights").unlink()
    two.unlink()
    assert [model.outputs for model in read_document(out / "layout.json", Layout).models] == [("y",), ("y",)]
    server = start_triton([out / "workers" / "w0", out / "workers" / "w1"])
    tensor = InferInput("x", [3, 4], "FP32")
    tensor.set_data_from_numpy(np.zeros((3, 4), np.float32))
    with InferenceServerClient(server.grpc_address) as client:
        for name, value in (("one", 1), ("two", 2)):
            assert client.infer(name, [tensor]).as_numpy("y").tolist() == [[value] * 4] * 3


@pytest.mark.parametrize(
    ("shape", "blocks", "said"),
    [
        (["n", 4], 2, "partition 'm' has the blocks [0, 2], but {} is one block"),
        ([1, 4], 1, "{} cannot batch: the first dimension of input 'x' is fixed at 1"),
    ],
)
def test_what_is_not_whole_or_does_not_batch(
    run: Run, save_onnx: SaveOnnx, tmp_path: Path, shape: list[Any], blocks: int, said: str
) -> None:
    x, y = (helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape) for tensor in "xy")
    model = save_onnx([helper.make_node("Neg", ["x"], ["y"])], [x], [y])
    result = run(layout("m", blocks=blocks), folder=f"m={model}")
    assert result.exit_code == 1
    assert said.format(model) in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def halves(save_onnx: SaveOnnx, tmp_path: Path) -> Path:
    """Blocks of y = -upsampled(x): twice the height and width cross the cut, which no file says."""
    x, y = (helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", 3, "h", "w"]) for tensor in "xy")
    scales = [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")]
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["up"]), helper.make_node("Neg", ["up"], ["y"])]
    split_model(save_onnx(nodes, [x], [y], scales), tmp_path / "halves", at=["up"], shapes={"x": (3, 8, 16)})
    return tmp_path / "halves"


def test_engines_of_partitions_are_built_for_what_crosses_the_cut(run: Run, halves: Path, tmp_path: Path) -> None:
    document = layout("m", blocks=1)
    document["models"][0]["pipelines"][0]["partitions"] = ["m.a", "m.b"]
    (part,) = document["partitions"]
    document["partitions"] = [{**part, "name": "m.a"}, {**part, "name": "m.b", "blocks": [1, 2]}]
    document["workers"][0]["hosts"] = ["m.a", "m.b"]

    def sizes_of(part: str) -> dict[str, Any]:
        (folder,) = (tmp_path / "out" / "engines").glob("*/")
        (entry,) = json.loads((folder / f"{part}.json").read_text())["inputs"]
        return {key: entry[key] for key in ("min", "opt", "max")}

    result = run(document, "--deploy-target", "tensorrt", folder=halves)
    assert result.exit_code == 0, result.stderr
    assert sizes_of("m.a") == {"min": [1, 3, 8, 16], "opt": [4, 3, 8, 16], "max": [4, 3, 8, 16]}
    assert sizes_of("m.b") == {"min": [1, 3, 16, 32], "opt": [4, 3, 16, 32], "max": [4, 3, 16, 32]}
    point = {"rows": 1, "median_ms": 1, "p95_ms": 1, "samples": 9}
    measured = [
        {"model": "m", "alpha_ms": 1, "beta_ms": 0, "points": [point], "shape": f"x:3,{height},8"}
        for height in (6, 2, 9)
    ]
    (tmp_path / "measured.json").write_text(json.dumps({"profiles": measured}))
    profile = tmp_path / "measured.json"
    result = run(document, "--deploy-target", "tensorrt", "--profiles", profile, "--force", folder=halves)
    assert result.exit_code == 0, result.stderr
    assert sizes_of("m.a") == {"min": [1, 3, 2, 8], "opt": [4, 3, 6, 8], "max": [4, 3, 9, 8]}
    assert sizes_of("m.b") == {"min": [1, 3, 4, 16], "opt": [4, 3, 12, 16], "max": [4, 3, 18, 16]}
    for part, given, shape in (("m.a", "x", (4, 3, 9, 8)), ("m.b", "up", (4, 3, 18, 16))):
        (folder,) = (tmp_path / "out" / "engines").glob("*/")
        file = folder / json.loads((folder / f"{part}.json").read_text())["onnx"]
        onnxruntime.InferenceSession(file).run(None, {given: np.zeros(shape, np.float32)})
