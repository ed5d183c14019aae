"""What is read from an ONNX file, and what is refused."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from tidegate_repo_generator.model import GenerateError, Tensor
from tidegate_repo_generator.onnx_file import read_onnx

SaveOnnx = Callable[..., Path]


def value(name: str, shape: Sequence[int | str | None] | None, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


X, Y = value("x", ["n", 4]), value("y", ["n", 4])
ADD_W = node("Add", ["x", "w"], ["y"])
WEIGHT = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")


def test_names_types_and_shapes(save_onnx: SaveOnnx) -> None:
    path = save_onnx(
        [node("Identity", ["a"], ["b"])], [value("a", ["n", 3, None, -1])], [value("b", ["n", 3, "?", "w"])]
    )
    model = read_onnx(path)
    assert model.inputs == (Tensor("a", "FP32", ("n", 3, "", "")),)
    assert model.outputs == (Tensor("b", "FP32", ("n", 3, "", "w")),)
    assert model.inputs[0].dims == [-1, 3, -1, -1]
    assert model.data_files == ()


def test_initializers_among_the_inputs_are_no_inputs(save_onnx: SaveOnnx) -> None:
    path = save_onnx([ADD_W], [X, value("w", [4])], [Y], [WEIGHT])
    assert [tensor.name for tensor in read_onnx(path).inputs] == ["x"]


def test_undeclared_shapes_are_inferred(save_onnx: SaveOnnx) -> None:
    big = numpy_helper.from_array(np.zeros((4, 500), np.float32), "big")
    path = save_onnx([node("MatMul", ["x", "big"], ["y"])], [X], [value("y", None)], [big])
    assert read_onnx(path).outputs == (Tensor("y", "FP32", ("n", 500)),)


def test_external_data_is_found_but_not_read(save_onnx: SaveOnnx) -> None:
    path = save_onnx([ADD_W], [X], [Y], [WEIGHT], save_as_external_data=True, location="model.data", size_threshold=0)
    (path.parent / "model.data").write_bytes(b"")
    assert read_onnx(path).data_files == (PurePosixPath("model.data"),)


def test_external_data_inside_a_subgraph_is_found(save_onnx: SaveOnnx) -> None:
    constant = helper.make_tensor("c", TensorProto.FLOAT, [1], b"\0\0\0\0", raw=True)
    onnx.external_data_helper.set_external_data(constant, "parts/c.bin")
    constant.ClearField("raw_data")
    branch = helper.make_graph([node("Constant", [], ["z"], value=constant)], "branch", [], [value("z", [1])])
    choose = node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    path = save_onnx([choose], [value("x", [1], TensorProto.BOOL)], [value("y", [1])])
    with pytest.raises(GenerateError, match=r"tensor 'c' is missing: put the file 'parts/c\.bin' beside the model"):
        read_onnx(path)
    (path.parent / "parts").mkdir()
    (path.parent / "parts" / "c.bin").write_bytes(b"\0\0\0\0")
    assert read_onnx(path).data_files == (PurePosixPath("parts/c.bin"),)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname"])
def test_external_data_elsewhere_is_refused(save_onnx: SaveOnnx, location: str) -> None:
    path = save_onnx([ADD_W], [X], [Y], [WEIGHT])
    model = onnx.load(path)
    (tensor,) = model.graph.initializer
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(GenerateError, match=re.escape(f"'w' keeps its data in '{location}', outside the folder")):
        read_onnx(path)


@pytest.mark.parametrize("content", [b"", b"\x08\x01", b"this is no model", bytes(range(256))])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(GenerateError, match=r"model\.onnx is not an ONNX model"):
        read_onnx(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.onnx", tmp_path):
        with pytest.raises(GenerateError, match=rf"{path} is not a file: give the path of an ONNX model"):
            read_onnx(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (value("x", [0, 4]), "input 'x' has a dimension of fixed size 0"),
        (value("x", [1], TensorProto.COMPLEX64), "input 'x' has the type COMPLEX64, which Triton does not know: cast"),
        (value("x", None), "input 'x' has no declared type or shape: export the model with both"),
        (helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [1]), "input 'x' is a sequence, and Triton"),
    ],
)
def test_what_triton_cannot_express(save_onnx: SaveOnnx, given: object, message: str) -> None:
    path = save_onnx([node("Identity", ["x"], ["unused"])], [given], [value("y", [1])])
    with pytest.raises(GenerateError, match=message):
        read_onnx(path)


def test_a_model_without_inputs(save_onnx: SaveOnnx) -> None:
    path = save_onnx([node("Identity", ["w"], ["y"])], [], [value("y", [4])], [WEIGHT])
    with pytest.raises(GenerateError, match="has no inputs"):
        read_onnx(path)
