"""Files as people have them: nodes in any order, data behind links, versions and operators that onnxruntime lacks."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegate_repo_generator.generate import generate_model
from tidegate_repo_generator.model import DeployTarget, GenerateError
from tidegate_repo_generator.onnx_file import load_proto
from tidegate_repo_generator.source import load_data
from tidegate_repo_generator.splitting.blocks import write_partition
from tidegate_repo_generator.splitting.split import split_model

SaveOnnx = Callable[..., Path]
WEIGHTS = {
    name: np.random.default_rng(number).standard_normal(shape).astype(np.float32)
    for number, (name, shape) in enumerate({"w1": (32, 64), "w2": (64, 16)}.items())
}
FEED = {"x": np.random.default_rng(9).standard_normal((3, 32)).astype(np.float32)}


def tensor(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def encoder(save_onnx: SaveOnnx, first: str | int = "batch", **options: Any) -> Path:
    nodes = [
        helper.make_node("Relu", ["h"], ["r"], name="relu"),  # before the node that makes h
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], name="second"),
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()]
    return save_onnx(nodes, [tensor("x", [first, 32])], [tensor("y", [first, 16])], weights, **options)


def run(path: Path, feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def expected() -> NDArray[np.float32]:
    answer: NDArray[np.float32] = np.maximum(FEED["x"] @ WEIGHTS["w1"], 0) @ WEIGHTS["w2"]
    return answer


def check_split(path: Path, folder: Path) -> None:
    split_model(path, folder / "blocks", at=["r"])
    answer = run(folder / "blocks/01.onnx", run(folder / "blocks/00.onnx", FEED))["y"]
    np.testing.assert_allclose(answer, expected(), rtol=1e-4, atol=1e-4)
    write_partition(folder / "blocks", 0, 2, folder / "joined.onnx")
    np.testing.assert_allclose(run(folder / "joined.onnx", FEED)["y"], expected(), rtol=1e-4, atol=1e-4)


def test_nodes_in_any_order(save_onnx: SaveOnnx, tmp_path: Path) -> None:
    path = encoder(save_onnx)
    assert [node.name for node in load_proto(path).graph.node] == ["first", "relu", "second"]
    check_split(path, tmp_path)
    assert generate_model(path, tmp_path / "models").max_batch_size == 32


def test_sorted_nodes_stay_where_they_are(save_onnx: SaveOnnx) -> None:
    nodes = [helper.make_node("Relu", ["x"], [name], name=name) for name in ("b", "a", "y")]
    path = save_onnx(nodes, [tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    assert [node.name for node in load_proto(path).graph.node] == ["b", "a", "y"]


def test_nodes_within_a_branch_are_sorted_by_what_they_capture(save_onnx: SaveOnnx) -> None:
    inner = [helper.make_node("Neg", ["b"], ["t"], name="late"), helper.make_node("Relu", ["h"], ["b"], name="early")]
    branch = helper.make_graph(inner, "branch", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)])
    nodes = [
        helper.make_node("If", ["yes"], ["y"], name="if", then_branch=branch, else_branch=branch),
        helper.make_node("Exp", ["x"], ["h"], name="exp"),
    ]
    yes = numpy_helper.from_array(np.array(True), "yes")
    path = save_onnx(nodes, [tensor("x", ["n", 4])], [tensor("y", ["n", 4])], [yes])
    graph = load_proto(path).graph
    assert [node.name for node in graph.node] == ["exp", "if"]
    assert [node.name for node in graph.node[1].attribute[0].g.node] == ["early", "late"]


def test_nodes_in_a_circle_are_refused(save_onnx: SaveOnnx) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="one"), helper.make_node("Relu", ["a"], ["b"], name="two")]
    path = save_onnx(nodes, [tensor("x", ["n", 4])], [tensor("a", ["n", 4])])
    with pytest.raises(GenerateError, match="node 'one' waits for its own output, in a circle"):
        load_proto(path)


@pytest.fixture(params=["cache of symbolic links", "hard links", "two folders"])
def linked(request: pytest.FixtureRequest, save_onnx: SaveOnnx, tmp_path: Path) -> Callable[[str | int], Path]:
    """A model whose data file is not just a file beside it, by its first dimension."""

    def build(first: str | int) -> Path:
        options = {"save_as_external_data": True, "location": "enc.data", "size_threshold": 0}
        (tmp_path / "onnx/enc.data").unlink(missing_ok=True)
        path = encoder(save_onnx, first, name="enc.onnx", **options)
        data = path.with_name("enc.data")
        if request.param == "hard links":
            (tmp_path / "cache").unlink(missing_ok=True)
            (tmp_path / "cache").hardlink_to(data)
            return path
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        apart = request.param == "two folders"
        for number, file in enumerate((path, data)):
            blobs = tmp_path / "cache" / (f"blobs{number}" if apart else "blobs")
            blobs.mkdir(parents=True, exist_ok=True)
            shutil.move(file, blobs / f"{number}beef")
            snapshot = tmp_path / "cache/snapshots/0abc"
            snapshot.mkdir(parents=True, exist_ok=True)
            (snapshot / file.name).symlink_to(blobs / f"{number}beef")
        return tmp_path / "cache/snapshots/0abc/enc.onnx"

    return build


def test_data_behind_links(linked: Callable[[str | int], Path], tmp_path: Path) -> None:
    check_split(linked("batch"), tmp_path)
    assert generate_model(linked("batch"), tmp_path / "models").max_batch_size == 32
    np.testing.assert_allclose(run(tmp_path / "models/enc/1/model.onnx", FEED)["y"], expected(), rtol=1e-4, atol=1e-4)
    generate_model(linked(1), tmp_path / "freed", batch_dim=True)
    np.testing.assert_allclose(run(tmp_path / "freed/enc/1/model.onnx", FEED)["y"], expected(), rtol=1e-4, atol=1e-4)


def test_a_data_file_that_is_cut_short(save_onnx: SaveOnnx) -> None:
    path = encoder(save_onnx, save_as_external_data=True, location="enc.data", size_threshold=0)
    data = path.with_name("enc.data")
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(GenerateError, match=r"enc\.data ends within tensor 'w2' \(\d+ of 4096 bytes\)"):
        load_data(load_proto(path), path.parent)
    with pytest.raises(GenerateError, match="onnxruntime cannot load it here"):
        generate_model(path, path.parent / "models")


@pytest.mark.parametrize("what", ["version", "operator"])
@pytest.mark.parametrize("max_batch", [None, 0, 4])
def test_what_the_embedded_triton_cannot_load_is_refused(
    save_onnx: SaveOnnx, tmp_path: Path, what: str, max_batch: int | None
) -> None:
    domain = "harbour.example" if what == "operator" else ""
    node = helper.make_node("TideHeight" if domain else "Relu", ["x"], ["y"], domain=domain)
    path = save_onnx([node], [tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("harbour.example", 1))
    if what == "version":
        model.ir_version = 99
    onnx.save(model, path)
    with pytest.raises(GenerateError, match=r"model\.onnx: onnxruntime cannot load it here .*--deploy-target triton"):
        generate_model(path, tmp_path / "models", max_batch=max_batch)
    made = generate_model(path, tmp_path / "models", deploy_target=DeployTarget.TRITON)
    assert made.max_batch_size == 0
    assert "Not batched, for it is not clear that it can: onnxruntime cannot load it here" in made.notices[0]
    assert "# Not batched, for it is not clear" in (tmp_path / "models/model/config.pbtxt").read_text()
