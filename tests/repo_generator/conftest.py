"""ONNX models, made on the spot."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import rapidocr_onnxruntime
from onnx import TensorProto, helper

SaveOnnx = Callable[..., Path]


@pytest.fixture
def save_onnx(tmp_path: Path) -> SaveOnnx:
    """`save_onnx(nodes, inputs, outputs, weights=(), name="model.onnx", **options)` -> the file.

    The options are those of onnx.save.
    """

    def save(
        nodes: list[Any],
        inputs: list[Any],
        outputs: list[Any],
        weights: Sequence[Any] = (),
        name: str = "model.onnx",
        **options: Any,
    ) -> Path:
        graph = helper.make_graph(nodes, "graph", inputs, outputs, initializer=list(weights))
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        path = tmp_path / "onnx" / name
        path.parent.mkdir(exist_ok=True)
        onnx.save(model, path, **options)
        return path

    return save


@pytest.fixture
def doubler(save_onnx: SaveOnnx) -> Path:
    """`y = x + x` over FP32 [batch, 4]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    return save_onnx([helper.make_node("Add", ["x", "x"], ["y"])], [x], [y])


@pytest.fixture(scope="session")
def ocr_models() -> dict[str, Path]:
    """The detector, the classifier and the recognizer of rapidocr-onnxruntime."""
    folder = Path(rapidocr_onnxruntime.__file__).parent / "models"
    return {
        "det": folder / "ch_PP-OCRv4_det_infer.onnx",
        "cls": folder / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "rec": folder / "ch_PP-OCRv4_rec_infer.onnx",
    }


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "huge" not in config.getoption("markexpr"):
        for item in items:
            if "huge" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs gigabytes; run with `-m huge`"))
