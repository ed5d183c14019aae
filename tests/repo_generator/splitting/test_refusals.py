"""What cannot be cut: the message names the tensor or node, the reason and the remedy, and nothing is written."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tidegate_repo_generator.dataflow import SplitError
from tidegate_repo_generator.splitting.blocks import open_blocks, write_partition
from tidegate_repo_generator.splitting.split import split_model

SaveText = Callable[..., Path]


def test_a_block_that_sends_nothing_is_refused(save_text: SaveText, tmp_path: Path) -> None:
    """What is computed between the two cuts is computed again behind the second."""
    path = save_text("""g (float[n, 4, 2] x) => (float[n, 4, 2] y) {
        a = Relu(x)  t = Transpose<perm = [1, 0, 2]>(a)  y = Transpose<perm = [1, 0, 2]>(t) }""")
    with pytest.raises(SplitError, match=r"between the cuts after 'a' .* and after 't' .* is sent on: leave one"):
        split_model(path, tmp_path / "blocks", at=["a", "t"])


def test_a_cut_through_what_has_no_batch_is_refused(save_text: SaveText, tmp_path: Path) -> None:
    """Rows and features in one dimension."""
    path = save_text(
        """g (float[n, 4, 2] x) => (float[n, 4, 2] y) {
        t = Reshape(x, flat)  m = MatMul(t, w)  b = Exp(m)  y = Reshape(b, back) }""",
        {"w": np.ones((2, 2), np.float32), "flat": np.array([-1, 2]), "back": np.array([-1, 4, 2])},
    )
    refusal = r"no cut after 'b' .*'m' .*its shape is \[8, 2\] for a batch of 2.*MatMul takes too long"
    with pytest.raises(SplitError, match=refusal):
        split_model(path, tmp_path / "blocks", at=["b"])
    assert not (tmp_path / "blocks").exists()
    refusal = r"into 4 blocks: 1 of 3 places are possible.* impossible: there is no cut after 'm'"
    with pytest.raises(SplitError, match=refusal):
        split_model(path, tmp_path / "blocks", blocks=4)


def test_rows_that_meet_in_the_middle_are_refused(save_text: SaveText, tmp_path: Path) -> None:
    """a - mean + mean: what the model answers hides what would cross."""
    path = save_text("""g (float[n, 4] x) => (float[n, 4] y) {
        m = ReduceMean<axes = [0], keepdims = 1>(x)  a = Sub(x, m)  b = Identity(a)  y = Add(b, m) }""")
    with pytest.raises(
        SplitError, match=r"not shown to be independent: node 'm' \(ReduceMean\) mixes rows: it reduces"
    ):
        split_model(path, tmp_path / "blocks", at=["a"])


def test_values_beyond_fp16_are_an_error(save_text: SaveText, tmp_path: Path) -> None:
    path = save_text(
        "g (float[n, 4] x) => (float[n, 4] y) { a = Mul(x, big)  y = Div(a, big) }",
        {"big": np.full(4, 1e6, np.float32)},
    )
    with pytest.raises(SplitError, match="'a_fp16' has values that float16 cannot hold"):
        split_model(path, tmp_path / "blocks", at=["a"], fp16=True)
    split_model(path, tmp_path / "blocks", at=["a"])


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("q", "no node of the main graph makes the tensor 'q'"),
        ("SIGM", "near: sigmoid_out"),
        ("x", "'x' is an input of the model"),
        ("s", "'s' does not depend on what the inputs contain"),
        ("y", "nothing comes after the cut after 'y'"),
    ],
)
def test_a_tensor_that_is_no_place_for_a_cut(save_text: SaveText, tmp_path: Path, at: str, said: str) -> None:
    path = save_text(
        "g (float[n, 4] x) => (float[n, 4] y) { s = Shape(x)  sigmoid_out = Sigmoid(x)  y = Reshape(sigmoid_out, s) }"
    )
    with pytest.raises(SplitError, match=said):
        split_model(path, tmp_path / "blocks", at=[at])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }", "input 'x' is fixed at 1: .*--batch-dim"),
        (
            "g (float[n, 4] x) => (float[m] y) { y = ReduceSum<keepdims = 0>(x, axis) }",
            r"output 'y' cannot be batched: its shape is \[4\]",
        ),
        ("g (float[n, 4] x) => (float[n, 4] y) { y = other.Strange(x) }", "onnxruntime cannot load it here"),
        (
            "g (float[n, 4] x) => (float[n, 4] y) { y = Softmax<axis = 0>(x) }",
            r"node 'y' \(Softmax\) mixes rows",
        ),
        (
            "g (float[n, 4] x) => (float[n, 4] y) { r = RandomNormalLike(x)  y = Add(x, r) }",
            "'y' differs from run to run",
        ),
        ("g (float[n, k] x) => (float[n, 4] y) { y = MatMul(x, w) }", "--shape NAME:SIZE"),
    ],
)
def test_models_that_cannot_be_split(save_text: SaveText, tmp_path: Path, body: str, said: str) -> None:
    header = '<ir_version: 8, opset_import: ["" : 17, "other" : 1]>'
    path = save_text(body, {"axis": np.array([0]), "w": np.ones((7, 4), np.float32)}, header=header)
    with pytest.raises(SplitError, match=said):
        split_model(path, tmp_path / "blocks", blocks=1)
    assert not (tmp_path / "blocks").exists()


def test_a_folder_that_is_there(save_text: SaveText, tmp_path: Path) -> None:
    path = save_text("g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x)  y = Exp(a) }")
    split_model(path, tmp_path / "blocks", at=["a"])
    with pytest.raises(SplitError, match="exists: replace it with --force"):
        split_model(path, tmp_path / "blocks", blocks=1)
    split_model(path, tmp_path / "blocks", blocks=1, force=True)
    assert sorted(file.name for file in (tmp_path / "blocks").iterdir()) == ["00.onnx", "blocks.json", "model.onnx"]
    with pytest.raises(SplitError, match=r"holds no blocks \(it has no blocks.json\)"):
        split_model(path, tmp_path, force=True)


def test_partitions_of_a_changed_model_are_refused(save_text: SaveText, tmp_path: Path) -> None:
    path = save_text("g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x)  y = Exp(a) }")
    split_model(path, tmp_path / "blocks", at=["a"])
    with pytest.raises(SplitError, match="blocks 1 to 3"):
        write_partition(tmp_path / "blocks", 1, 3, tmp_path / "p.onnx")
    other = save_text("g (float[n, 4] x) => (float[n, 4] y) { b = Relu(x)  y = Exp(b) }", name="other.onnx")
    (tmp_path / "blocks/model.onnx").write_bytes(other.read_bytes())
    with pytest.raises(SplitError, match="one of the two was changed"):
        open_blocks(tmp_path / "blocks")
