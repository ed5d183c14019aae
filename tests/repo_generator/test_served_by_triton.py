"""Generated models, loaded and answered by a real tritonserver."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper

from tidegate_repo_generator.generate import generate_model
from tidegate_repo_generator.splitting.blocks import open_blocks
from tidegate_repo_generator.splitting.split import split_model

SaveOnnx = Callable[..., Path]


def same_as_onnxruntime(
    client: triton_grpc.InferenceServerClient, name: str, path: Path, feed: dict[str, np.ndarray[Any, Any]]
) -> None:
    """Compare to 1e-5. A single value per row is [rows, 1] to a client and [rows] to the model."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ranks = {tensor.name: len(tensor.shape) for tensor in session.get_inputs()}
    inputs = []
    for key, array in feed.items():
        inputs.append(triton_grpc.InferInput(key, array.shape, "FP32"))
        inputs[-1].set_data_from_numpy(array)
    result = client.infer(name, inputs)
    squeezed = {key: array if array.ndim == ranks[key] else array[..., 0] for key, array in feed.items()}
    for tensor, expected in zip(session.get_outputs(), session.run(None, squeezed), strict=True):
        answer = result.as_numpy(tensor.name)
        np.testing.assert_allclose(answer.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


def test_generated_models_answer_as_onnxruntime_does(
    start_triton: Callable[..., Any], save_onnx: SaveOnnx, doubler: Path, ocr_models: dict[str, Path], tmp_path: Path
) -> None:
    scalar_rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    per_row = save_onnx([helper.make_node("Neg", ["x"], ["y"])], scalar_rows[:1], scalar_rows[1:], name="per_row.onnx")
    fixed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy"]
    single = save_onnx([helper.make_node("Neg", ["x"], ["y"])], fixed[:1], fixed[1:], name="single.onnx")
    shapes_of = {"x": [3], "factor": [], "y": [3], "total": []}
    x, factor, y, total = (helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in shapes_of.items())
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    scalars = save_onnx(nodes, [x, factor], [y, total], name="scalars.onnx")
    models = {"doubler": doubler, "per_row": per_row, "single": single, "scalars": scalars}
    models |= {name: ocr_models[name] for name in ("cls", "rec")}
    for name, path in models.items():
        generate_model(path, tmp_path / "models", name=name, slo_ms=70)
    server = start_triton([tmp_path / "models"])
    random = np.random.default_rng(1)
    shapes = {"doubler": (3, 4), "per_row": (5, 1), "single": (1, 2), "cls": (2, 3, 48, 192), "rec": (2, 3, 48, 160)}
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        for name, shape in shapes.items():
            feed = {"x": random.standard_normal(shape).astype(np.float32)}
            same_as_onnxruntime(client, name, models[name], feed)
        feed = {"x": np.arange(3, dtype=np.float32), "factor": np.array([2], np.float32)}
        same_as_onnxruntime(client, "scalars", scalars, feed)
        config = client.get_model_config("cls").config
        assert config.parameters["slo_ms"].string_value == "70"


@pytest.mark.slow
def test_partitions_in_a_row_answer_as_the_whole_does(
    start_triton: Callable[..., Any], ocr_models: dict[str, Path], tmp_path: Path
) -> None:
    """Rows of the first partition's batches meet others in the second's."""
    manifest = split_model(ocr_models["rec"], tmp_path / "blocks", blocks=6, shapes={"x": (3, 48, 160)}, fp16=True)
    blocks = open_blocks(tmp_path / "blocks", fp16=False)
    bounds = ((0, 2), (2, 5), (5, 6))
    for first, last in bounds:
        blocks.save(first, last, tmp_path / f"part{first}.onnx")
        generated = generate_model(tmp_path / f"part{first}.onnx", tmp_path / "models", max_batch=8)
        assert generated.max_batch_size == 8
    server = start_triton([tmp_path / "models"])
    feed = {"x": np.random.default_rng(1).standard_normal((4, 3, 48, 160)).astype(np.float32)}
    live = dict(feed)
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        for (first, _), halves in zip(bounds, (((0, 1), (1, 4)), ((0, 4),), ((0, 3), (3, 4))), strict=True):
            name = f"part{first}"
            metadata = client.get_model_metadata(name)
            answers = []
            for start, stop in halves:
                inputs = []
                for tensor in metadata.inputs:
                    array = live[tensor.name][start:stop]
                    inputs.append(triton_grpc.InferInput(tensor.name, array.shape, tensor.datatype))
                    inputs[-1].set_data_from_numpy(array)
                answers.append(client.infer(name, inputs))
            live |= {
                tensor.name: np.concatenate([answer.as_numpy(tensor.name) for answer in answers])
                for tensor in metadata.outputs
            }
    session = onnxruntime.InferenceSession(ocr_models["rec"], providers=["CPUExecutionProvider"])
    (output,) = session.get_outputs()
    np.testing.assert_allclose(live[output.name], session.run(None, feed)[0], rtol=1e-4, atol=1e-5)
    assert manifest.verification.max_difference <= 1e-5
