"""A fixed batch of 1 is made symbolic where two rows then answer what each answers alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from tidegate_repo_generator.dataflow import SplitError
from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.splitting.batch_dim import with_symbolic_batch
from tidegate_repo_generator.splitting.split import split_model

SaveText = Callable[..., Path]
RunAll = Callable[..., dict[str, NDArray[Any]]]


def test_reshapes_keep_the_batch(save_text: SaveText, tmp_path: Path, run_all: RunAll) -> None:
    path = save_text(
        """g (float[1, 4, 2] x) => (float[1, 2, 4] y) {
        c = Constant<value = int64[2] {1, -1}>()  a = Reshape(x, shape)  b = Reshape(a, c)  y = Reshape(b, back) }""",
        {"shape": np.array([1, 8]), "back": np.array([1, 2, 4])},
    )
    model = with_symbolic_batch(path).proto
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
            "g (float[1, 4] x) => (float[1, 4] y) { s = Expand(x, sizes)  y = Reshape<allowzero = 1>(s, sizes) }",
            "the batch of 1 is built into the graph",
        ),
        (
            "g (float[1, 4] x) => (float[1, 4] y) { y = Softmax<axis = 0>(x) }",
            "a row's output 'y' depends on what else",
        ),
        (
            "g (float[1, 4] x) => (float[1, 1] y) { y = ReduceMax<axes = [0, 1]>(x) }",
            r"output 'y' has the shape \[1, 1\] for a batch of 4",
        ),
    ],
)
def test_a_batch_that_is_built_in(save_text: SaveText, body: str, said: str) -> None:
    path = save_text(body, {"sizes": np.array([1, 4])})
    with pytest.raises(SplitError, match=said):
        with_symbolic_batch(path)


@pytest.mark.parametrize(
    "shape",
    [
        "s = Constant<value_ints = [1, 8]>()",
        "s = Identity(sizes)",
        "s = Concat<axis = 0>(one, eight)",
        "a = Shape<start = 0, end = 1>(x)  s = Concat<axis = 0>(a, eight)",
        "a = Shape<start = 1, end = 2>(x)  b = Mul(a, two)  s = Concat<axis = 0>(one, b)",
    ],
)
def test_shapes_of_every_form_keep_the_batch(save_text: SaveText, shape: str) -> None:
    path = save_text(
        f"g (float[1, 4, 2] x) => (float[1, 8] y) {{ {shape}  r = Relu(x)  y = Reshape(r, s) }}",
        {"sizes": np.array([1, 8]), "one": np.array([1]), "eight": np.array([8]), "two": np.array([2])},
    )
    source = with_symbolic_batch(path)
    session = ort.InferenceSession(source.proto.SerializeToString())
    feed = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    np.testing.assert_array_equal(session.run(None, {"x": feed})[0], feed.reshape(3, 8))


def test_an_output_without_a_shape(save_text: SaveText) -> None:
    path = save_text("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    freed = with_symbolic_batch(path).proto
    assert [dim.dim_param or dim.dim_value for dim in freed.graph.output[0].type.tensor_type.shape.dim] == ["batch", 4]


@pytest.mark.parametrize("scalar", ["input", "output"])
def test_a_scalar_beside_the_batch_is_refused_in_a_line(save_text: SaveText, scalar: str) -> None:
    body = {
        "input": "g (float[1, 4] x, float s) => (float[1, 4] y) { y = Mul(x, s) }",
        "output": "g (float[1, 4] x) => (float[1, 4] y, float s) { y = Relu(x)  s = ReduceSum<keepdims = 0>(x) }",
    }[scalar]
    with pytest.raises(GenerateError, match=r"scalar|\[\] for a batch of 1"):
        with_symbolic_batch(save_text(body))
