"""Which models batch, and what is said about those that do not."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from tidegate_repo_generator.batching import judge_batching
from tidegate_repo_generator.onnx_file import read_onnx

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
    assert "output 'y' has the shape [4, 2] for a batch of 1" in verdict.reason


def test_a_batch_of_one_that_the_exporter_baked_in(save_onnx: SaveOnnx) -> None:
    path = save_onnx(
        [node("Reshape", ["x", "shape"], ["y"])],
        [value("x", ["batch", 2, 2])],
        [value("y", ["batch", 4])],
        [integers("shape", [1, 4])],
    )
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is False
    assert "it runs with one row but not with several" in verdict.reason


def test_rows_that_look_at_each_other(save_onnx: SaveOnnx) -> None:
    path = save_onnx([node("Softmax", ["x"], ["y"], axis=0)], [value("x", [None, 4])], [value("y", [None, 4])])
    verdict = judge_batching(read_onnx(path))
    assert (verdict.batches, verdict.reason) == (
        False,
        "a row's output 'y' depends on what else is in the batch",
    )


def test_a_saturated_output_is_not_judged_by_its_rounding(save_onnx: SaveOnnx) -> None:
    # Half a unit in the last place of 1, where all values are that small.
    tiny = numpy_helper.from_array(np.array(6e-8, np.float32), "tiny")
    nodes = [node("Softmax", ["x"], ["s"], axis=0), node("Mul", ["s", "tiny"], ["y"])]
    path = save_onnx(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], [tiny])
    assert judge_batching(read_onnx(path)).batches is True


@pytest.mark.parametrize("shape", [["steps", "batch", 4], ["n", "n"]])
def test_the_batch_is_not_in_front(save_onnx: SaveOnnx, shape: list[str | int]) -> None:
    verdict = judge_batching(read_onnx(relu(save_onnx, shape, shape)))
    assert verdict.batches is False
    assert verdict.reason == f"'{shape[1]}' is dimension 1 of input 'x', and a batch's must be the first"


def test_a_model_that_draws_random_numbers_is_not_compared(save_onnx: SaveOnnx) -> None:
    noise = [node("RandomNormalLike", ["x"], ["noise"]), node("Add", ["x", "noise"], ["y"])]
    path = save_onnx(noise, [value("x", ["n", 4])], [value("y", ["n", 4])])
    assert judge_batching(read_onnx(path)).batches is True


def test_infinities_are_no_difference(save_onnx: SaveOnnx) -> None:
    path = save_onnx([node("Log", ["x"], ["y"])], [value("x", ["n", 4])], [value("y", ["n", 4])])
    assert judge_batching(read_onnx(path)).batches is True


@pytest.mark.parametrize("element", [TensorProto.BOOL, TensorProto.INT8, TensorProto.FLOAT16, TensorProto.STRING])
def test_other_types_are_tried_too(save_onnx: SaveOnnx, element: int) -> None:
    path = save_onnx([node("Identity", ["x"], ["y"])], [value("x", ["n"], element)], [value("y", ["n"], element)])
    assert "3 rows were answered" in judge_batching(read_onnx(path)).reason


def test_inputs_that_count_different_things_leave_it_open(save_onnx: SaveOnnx) -> None:
    path = save_onnx(
        [node("Add", ["image", "image"], ["y"]), node("Add", ["box", "box"], ["z"])],
        [value("image", ["images", 4]), value("box", ["boxes", 4])],
        [value("y", ["images", 4]), value("z", ["boxes", 4])],
    )
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is None
    assert verdict.reason == "the first dimensions of the inputs have different names: boxes, images"


@pytest.mark.parametrize(("out", "batches"), [("n", True), ("m", None)])
def test_a_model_that_cannot_be_run_here_is_taken_at_its_names(
    save_onnx: SaveOnnx, out: str, batches: bool | None
) -> None:
    custom = node("Mystery", ["x"], ["y"], domain="elsewhere")
    path = save_onnx([custom], [value("x", ["n", 4])], [value("y", [out, 4])])
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    path.write_bytes(model.SerializeToString())
    verdict = judge_batching(read_onnx(path))
    assert verdict.batches is batches
    if batches is None:
        assert "onnxruntime cannot load it here" in verdict.reason


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
    assert "onnxruntime cannot run it here on random inputs" in verdict.reason


def test_the_ocr_models_batch(ocr_models: dict[str, Path]) -> None:
    assert all(judge_batching(read_onnx(path)).batches for path in ocr_models.values())
