"""A fixed batch of 1 is made symbolic where two rows then answer what each answers alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tidegate_repo_generator.splitting.batch_dim import with_symbolic_batch
from tidegate_repo_generator.splitting.graph import SplitError
from tidegate_repo_generator.splitting.split import split_model

SaveText = Callable[..., Path]
RunAll = Callable[..., dict[str, NDArray[Any]]]


def test_reshapes_keep_the_batch(save_text: SaveText, tmp_path: Path, run_all: RunAll) -> None:
    path = save_text(
        """g (float[1, 4, 2] x) => (float[1, 2, 4] y) {
        c = Constant<value = int64[2] {1, -1}>()  a = Reshape(x, shape)  b = Reshape(a, c)  y = Reshape(b, back) }""",
        {"shape": np.array([1, 8]), "back": np.array([1, 2, 4])},
    )
    model = with_symbolic_batch(path)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    onnx.checker.check_model(model, full_check=True)
    split_model(path, tmp_path / "blocks", at=["a"], batch_dim=True)
    feed = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    files = [tmp_path / "blocks/00.onnx", tmp_path / "blocks/01.onnx"]
    np.testing.assert_array_equal(run_all(files, {"x": feed})["y"], feed.reshape(3, 2, 4))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "g (float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }",
            "--batch-dim frees a batch of 1, and that of input 'x' is 2",
        ),
        (
            "g (float[1, 4] x) => (float[1, 4] y) { s = Identity(sizes)  y = Reshape(x, s) }",
            "the batch of 1 is built into the graph",
        ),
        ("g (float[1, 4] x) => (float[1, 4] y) { y = Softmax<axis = 0>(x) }", "with two rows, output 'y'"),
        (
            "g (float[1, 4] x) => (float[1, 1] y) { y = ReduceMax<axes = [0, 1]>(x) }",
            r"with two rows, output 'y' \[1, 1\]",
        ),
    ],
)
def test_a_batch_that_is_built_in(save_text: SaveText, body: str, said: str) -> None:
    path = save_text(body, {"sizes": np.array([1, 4])})
    with pytest.raises(SplitError, match=said):
        with_symbolic_batch(path)
