"""Which models batch, and what is said about those that do not."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import magika
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from tests.examples import few
from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.onnx_file import read_onnx
from tidegate_repo_generator.rows.examination import Finding
from tidegate_repo_generator.rows.judgment import judge_batching

SaveOnnx = Callable[..., Path]


def value(name: str, shape: Sequence[int | str | None], element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def relu(save_onnx: SaveOnnx, shape: Sequence[int | str | None], out: Sequence[int | str | None]) -> Path:
    return save_onnx([node("Relu", ["x"], ["y"])], [value("x", shape)], [value("y", out)])


def integers(name: str, values: list[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


@pytest.mark.parametrize("first", ["batch", "p2o.DynamicDimension.0", None, -1])
@pytest.mark.parametrize("out", ["batch", "p2o.DynamicDimension.7", None])
def test_rows_that_stay_rows_batch_whatever_they_are_called(
    save_onnx: SaveOnnx, first: str | int | None, out: str | None
) -> None:
    path = relu(save_onnx, [first, 3, "h", None], [out, 3, "h", "w"])
    assert judge_batching(read_onnx(path)).batches is True


def test_a_fixed_first_dimension_of_an_input(save_onnx: SaveOnnx) -> None:
    verdict = judge_batching(read_onnx(relu(save_onnx, [1, 4], [1, 4])))
    assert verdict.batches is False
    assert verdict.reason == "the first dimension of input 'x' is fixed at 1"


def test_a_fixed_first_dimension_of_an_output(save_onnx: SaveOnnx) -> None:
    mean = node("ReduceMean", ["x"], ["y"], axes=[0])
    verdict = judge_batching(read_onnx(save_onnx([mean], [value("x", ["n", 4])], [value("y", [1, 4])])))
    assert (verdict.batches, verdict.reason) == (False, "the first dimension of output 'y' is fixed at 1")


def test_an_output_that_is_dynamic_but_counts_something_else(save_onnx: SaveOnnx) -> None:
    # As detectors with non-maximum suppression end: one row per detection.
    found = [node("NonZero", ["x"], ["where"]), node("Transpose", ["where"], ["y"], perm=[1, 0])]
    path = save_onnx(found, [value("x", ["n", 4])], [value("y", ["found", 2], TensorProto.INT64)])
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is False
    assert "node 'where' (NonZero) mixes rows: it counts what it finds in all rows together" in verdict.reason


def test_a_batch_of_one_that_the_exporter_baked_in(save_onnx: SaveOnnx) -> None:
    path = save_onnx(
        [node("Reshape", ["x", "shape"], ["y"])],
        [value("x", ["batch", 2, 2])],
        [value("y", ["batch", 4])],
        [integers("shape", [1, 4])],
    )
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is False
    assert "the shape of 'y' is [1, 4] for 1 and" in verdict.reason or "it runs with one row" in verdict.reason


def test_rows_that_look_at_each_other(save_onnx: SaveOnnx) -> None:
    path = save_onnx([node("Softmax", ["x"], ["y"], axis=0)], [value("x", [None, 4])], [value("y", [None, 4])])
    verdict = judge_batching(read_onnx(path))
    assert (verdict.batches, verdict.reason) == (
        False,
        "node 'y' (Softmax) mixes rows: it normalizes over the rows",
    )


def test_mixing_is_seen_behind_outputs_that_are_all_but_zero(save_onnx: SaveOnnx) -> None:
    tiny = numpy_helper.from_array(np.array(6e-8, np.float32), "tiny")
    nodes = [node("Softmax", ["x"], ["s"], axis=0), node("Mul", ["s", "tiny"], ["y"])]
    path = save_onnx(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], [tiny])
    assert judge_batching(read_onnx(path)).batches is False


@pytest.mark.parametrize("shape", [["steps", "batch", 4], ["n", "n"]])
def test_the_batch_is_not_in_front(save_onnx: SaveOnnx, shape: list[str | int]) -> None:
    verdict = judge_batching(read_onnx(relu(save_onnx, shape, shape)))
    assert verdict.batches is False
    assert verdict.reason == f"'{shape[1]}' is dimension 1 of input 'x', and a batch's must be the first"


def test_a_model_that_draws_random_numbers_is_not_compared(save_onnx: SaveOnnx) -> None:
    noise = [node("RandomNormalLike", ["x"], ["noise"]), node("Add", ["x", "noise"], ["y"])]
    path = save_onnx(noise, [value("x", ["n", 4])], [value("y", ["n", 4])])
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is None
    assert verdict.reason == "output 'y' differs from run to run, so that rows cannot be compared"


def test_infinities_are_no_difference(save_onnx: SaveOnnx) -> None:
    path = save_onnx([node("Log", ["x"], ["y"])], [value("x", ["n", 4])], [value("y", ["n", 4])])
    assert judge_batching(read_onnx(path)).batches is True


@pytest.mark.parametrize("element", [TensorProto.BOOL, TensorProto.INT8, TensorProto.FLOAT16, TensorProto.STRING])
def test_other_types_are_tried_too(save_onnx: SaveOnnx, element: int) -> None:
    path = save_onnx([node("Identity", ["x"], ["y"])], [value("x", ["n"], element)], [value("y", ["n"], element)])
    assert "rows were answered in batches of" in judge_batching(read_onnx(path)).reason


def test_inputs_that_count_different_things_leave_it_open(save_onnx: SaveOnnx) -> None:
    path = save_onnx(
        [node("Add", ["image", "image"], ["y"]), node("Add", ["box", "box"], ["z"])],
        [value("image", ["images", 4]), value("box", ["boxes", 4])],
        [value("y", ["images", 4]), value("z", ["boxes", 4])],
    )
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is None
    assert verdict.reason == "the first dimensions of the inputs have different names: boxes, images"


@pytest.mark.parametrize("out", ["n", "m"])
def test_equal_names_are_no_evidence(save_onnx: SaveOnnx, out: str) -> None:
    custom = node("Mystery", ["x"], ["y"], domain="elsewhere")
    path = save_onnx([custom], [value("x", ["n", 4])], [value("y", [out, 4])])
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    path.write_bytes(model.SerializeToString())
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is None
    assert "onnxruntime cannot load it here" in verdict.reason


def test_outputs_that_do_not_react_are_no_evidence(save_onnx: SaveOnnx, tmp_path: Path) -> None:
    """A detector that finds nothing in noise."""
    path = save_onnx(
        [node("Sub", ["x", "much"], ["d"]), node("Relu", ["d"], ["y"])],
        [value("x", ["n", 4])],
        [value("y", ["n", 4])],
        [numpy_helper.from_array(np.array(1e6, np.float32), "much")],
    )
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is None
    assert "output 'y' was the same for all inputs that were tried, which is no evidence" in verdict.reason
    np.savez(tmp_path / "real.npz", x=np.array([[2e6, 0, 0, 0], [0, 3e6, 0, 0]], np.float32))
    assert judge_batching(read_onnx(path), [tmp_path / "real.npz"]).batches is True
    np.save(tmp_path / "row.npy", np.array([2e6, 0, 0, 0], np.float32))
    assert judge_batching(read_onnx(path), [tmp_path / "row.npy"]).batches is True


def test_mixing_that_only_real_inputs_show(
    save_onnx: SaveOnnx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial alone, as for an operator that nobody knows."""
    monkeypatch.setattr("tidegate_repo_generator.rows.judgment._examined", lambda *_: Finding("independent"))
    path = save_onnx(
        [
            node("ReduceMax", ["x"], ["m"], keepdims=0),
            node("Sub", ["m", "much"], ["d"]),
            node("Relu", ["d"], ["r"]),
            node("Add", ["x", "r"], ["y"]),
        ],
        [value("x", ["n", 4])],
        [value("y", ["n", 4])],
        [numpy_helper.from_array(np.array(1e6, np.float32), "much")],
    )
    np.save(tmp_path / "rows.npy", np.array([[2e6, 0, 0, 0], [0, 1, 0, 0]], np.float32))
    verdict = judge_batching(read_onnx(path), [tmp_path / "rows.npy"])
    assert verdict.batches is False
    assert "a row's output 'y' depends on what else is in the batch" in verdict.reason


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, r"'x' is \[2, 3\], and the model's is \[-1, 4\]"),
        ({"z": np.zeros((2, 4), np.float32)}, "it holds z: give one array for each of the inputs x"),
        ({"x": np.array(["a", "b"])}, "'x' is"),
        (None, "it cannot be read"),
    ],
)
def test_files_of_inputs_that_do_not_fit(
    save_onnx: SaveOnnx, tmp_path: Path, content: dict[str, NDArray[Any]] | None, said: str
) -> None:
    path = relu(save_onnx, ["n", 4], ["n", 4])
    if content is None:
        (tmp_path / "inputs.npz").write_text("no arrays")
    else:
        np.savez(tmp_path / "inputs.npz", **content)
    with pytest.raises(GenerateError, match=said):
        judge_batching(read_onnx(path), [tmp_path / "inputs.npz"])


def test_a_model_that_rejects_every_size_is_open(save_onnx: SaveOnnx) -> None:
    # Seven columns exactly, though it declares any number.
    path = save_onnx(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", [None, "columns"])],
        [value("y", [None, 2])],
        [numpy_helper.from_array(np.zeros((7, 2), np.float32), "w")],
    )
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is None
    assert "onnxruntime cannot run it here on inputs that were made up" in verdict.reason


@pytest.mark.parametrize("name", few(["cls", "rec", "det"]))
def test_the_ocr_models_batch(ocr_models: dict[str, Path], name: str) -> None:
    assert judge_batching(read_onnx(ocr_models[name])).batches


def test_an_ill_conditioned_model_batches() -> None:
    """Magika's answers move by 1 % with the size of a batch, and by nothing with what is in it."""
    (path,) = (Path(magika.__file__).parent / "models").glob("standard_*/model.onnx")
    assert judge_batching(read_onnx(path)).batches is True


WINDOWS = [
    node("Shape", ["x"], ["shape"]),
    node("Reshape", ["x", "flat"], ["tokens"]),
    node("Shape", ["tokens"], ["sizes"]),
    node("Slice", ["sizes", "zero", "one"], ["count"]),
    node("Neg", ["count"], ["negative"]),
    node("Mod", ["negative", "sixteen"], ["missing"]),
    node("Concat", ["zero", "zero", "missing", "zero"], ["pads"], axis=0),
    node("Pad", ["tokens", "pads"], ["padded"]),
    node("Reshape", ["padded", "window"], ["windows"]),
    node("ReduceMean", ["windows"], ["means"], axes=[1]),
    node("Sub", ["windows", "means"], ["centered"]),
    node("Reshape", ["centered", "flat"], ["joined"]),
    node("Slice", ["joined", "zero", "count", "zero"], ["cut"]),
    node("Reshape", ["cut", "shape"], ["y"]),
]
"""Windows of 16 tokens over all rows: no window has tokens of two rows while the rows are multiples of 16 long."""


@pytest.mark.parametrize("given", [False, True])
def test_rows_that_meet_at_uneven_sizes_only(save_onnx: SaveOnnx, tmp_path: Path, given: bool) -> None:
    weights = [integers("flat", [-1, 4]), integers("zero", [0]), integers("one", [1]), integers("sixteen", [16])]
    weights.append(integers("window", [-1, 16, 4]))
    path = save_onnx(WINDOWS, [value("x", ["n", "tokens", 4])], [value("y", ["n", "tokens", 4])], weights)
    np.save(tmp_path / "rows.npy", np.random.default_rng(1).random((4, 32, 4), np.float32))
    verdict = judge_batching(read_onnx(path), [tmp_path / "rows.npy"] if given else [])
    assert verdict.batches is (None if given else False)
    assert "node 'padded' (Pad)" in verdict.reason
    assert verdict.reason.endswith("(with rows of 'x' of [21, 4])")


def test_random_rows_of_another_size_do_not_overrule_given_ones(
    save_onnx: SaveOnnx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows mix where some flag is 0, which is never so in real ones."""
    monkeypatch.setattr("tidegate_repo_generator.rows.judgment._examined", lambda *_: Finding("independent"))
    mixing = [
        node("ReduceMin", ["flag"], ["least"], keepdims=0),
        node("Cast", ["least"], ["all"], to=TensorProto.BOOL),
        node("ReduceMean", ["x"], ["mean"], keepdims=0),
        node("Where", ["all", "zero", "mean"], ["shift"]),
        node("Add", ["x", "shift"], ["y"]),
    ]
    inputs = [value("flag", ["n"], TensorProto.INT64), value("x", ["n", "tokens"])]
    weights = [numpy_helper.from_array(np.array(0, np.float32), "zero")]
    path = save_onnx(mixing, inputs, [value("y", ["n", "tokens"])], weights)
    assert judge_batching(read_onnx(path)).batches is False
    rows = np.random.default_rng(1).random((4, 32), np.float32)
    np.savez(tmp_path / "real.npz", x=rows, flag=np.ones(4, np.int64))
    assert judge_batching(read_onnx(path), [tmp_path / "real.npz"]).batches is True


def test_dimensions_with_names_of_their_own_have_sizes_of_their_own(save_onnx: SaveOnnx) -> None:
    """The rows mix where both inputs are unlike long: no trial at one size for all shows that."""
    mixing = [
        node("Shape", ["x"], ["sx"], start=1),
        node("Shape", ["z"], ["sz"], start=1),
        node("Sub", ["sx", "sz"], ["apart"]),
        node("Cast", ["apart"], ["weight"], to=TensorProto.FLOAT),
        node("ReduceMean", ["x"], ["mean"]),
        node("Mul", ["mean", "weight"], ["share"]),
        node("ReduceSum", ["z", "axis"], ["sums"]),
        node("Add", ["x", "share"], ["shifted"]),
        node("Add", ["shifted", "sums"], ["y"]),
    ]
    inputs = [value("x", ["n", "left"]), value("z", ["n", "right"])]
    path = save_onnx(mixing, inputs, [value("y", ["n", "left"])], [integers("axis", [1])])
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is False
