"""Inputs that are made up: in range, of sizes that go together, and others where a model fails on those."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tidegate_repo_generator.dataflow import Dataflow
from tidegate_repo_generator.model import Tensor
from tidegate_repo_generator.onnx_file import load_proto, read_onnx
from tidegate_repo_generator.onnx_sessions import RunError, open_session
from tidegate_repo_generator.rows.judgment import judge_batching
from tidegate_repo_generator.rows.samples import Sampler, find_samplers, index_limits, size_of

SaveOnnx = Callable[..., Path]


def ids(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"])


def table(name: str, rows: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32), name)


@pytest.mark.parametrize(
    ("entry", "size"),
    [
        ("t", 64),
        ("past + t", 128),
        ("past+1", 65),
        ("2*t", 128),
        ("t // 2", 32),
        ("t / 0", 64),
        ("a.b.c", 64),
        ("?", 64),
    ],
)
def test_sizes_of_named_dimensions(entry: str, size: int) -> None:
    assert size_of(entry, 64) == size


def test_indices_stay_within_their_tables(save_onnx: SaveOnnx) -> None:
    path = save_onnx(
        [
            helper.make_node("Gather", ["words", "word"], ["a"]),
            helper.make_node("Cast", ["kind"], ["kind32"], to=TensorProto.INT32),
            helper.make_node("Gather", ["kinds", "kind32"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["c"]),
            helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["m"], ["s"], keepdims=0),
            helper.make_node("Mul", ["c", "s"], ["y"]),
        ],
        [ids("word"), ids("kind"), ids("mask")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "t", 4])],
        [table("words", 300), table("kinds", 3)],
    )
    limits = index_limits(Dataflow(load_proto(path)))
    assert limits == {"word": 300, "kind": 3}
    rows = Sampler(read_onnx(path).inputs, 16, limits=limits).rows(8)
    assert (rows["word"].max() > 100, rows["kind"].max(), rows["mask"].max()) == (True, 2, 1)


def test_a_model_that_fails_on_random_values(save_onnx: SaveOnnx) -> None:
    """An index of 0 alone is valid, which the graph does not say."""
    path = save_onnx(
        [
            helper.make_node("Mul", ["i", "three"], ["j"]),
            helper.make_node("Gather", ["words", "j"], ["a"]),
            helper.make_node("ReduceMean", ["a"], ["m"], axes=[1], keepdims=0),
            helper.make_node("Add", ["m", "x"], ["y"]),
        ],
        [ids("i"), helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [table("words", 2), numpy_helper.from_array(np.array(3), "three")],
    )
    model = read_onnx(path)
    session = open_session(path, path.parent)
    sampler = find_samplers(session, model.inputs, {})[0]
    assert sampler.fill == "zeros"
    verdict = judge_batching(model)
    assert verdict.batches is None
    assert "was the same for all inputs that were tried, which is no evidence" in verdict.reason
    with pytest.raises(RunError, match="indices element out of data bounds"):
        find_samplers(session, model.inputs, {}, given={"i": np.full((1, 3), 7), "x": np.zeros((1, 4), np.float32)})


def test_the_same_seed_draws_the_same_rows() -> None:
    sampler = Sampler((Tensor("x", "FP32", ("n", 4)),))
    np.testing.assert_array_equal(sampler.rows(3)["x"], sampler.rows(3)["x"])
    assert not np.array_equal(sampler.rows(3)["x"], sampler.rows(3, seed=1)["x"])
