"""What the real tritonserver says of configurations for backends that the embedded one has not."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc import InferenceServerClient, model_config_pb2

from tidegate_repo_generator.generate import generate_model
from tidegate_repo_generator.model import DeployTarget, Precision
from tidegate_triton_models import model_source

SaveOnnx = Callable[..., Path]
SHAPES = [{"x": (3, 48, 320)}, {"x": (3, 48, 160)}]


@pytest.fixture
def pictures(save_onnx: SaveOnnx) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, "h", "w"]) for name in "xy")
    return save_onnx([helper.make_node("Neg", ["x"], ["y"])], [x], [y], name="pictures.onnx")


def test_only_the_backends_are_missing(
    start_triton: Callable[..., Any], pictures: Path, doubler: Path, tmp_path: Path
) -> None:
    """Of configurations that are wrong it says something else: that one poisoned by hand is its own proof."""
    models = tmp_path / "models"
    for deploy_target in (DeployTarget.TENSORRT, DeployTarget.TRITON_TENSORRT, DeployTarget.TRITON):
        shapes = SHAPES if deploy_target.takes_precision else []
        generate_model(
            pictures, models, name=deploy_target.value, deploy_target=deploy_target, shapes=shapes, max_batch=8
        )
    poisoned = generate_model(
        pictures, models, name="poisoned", deploy_target=DeployTarget.TENSORRT, shapes=SHAPES
    ).path
    config = poisoned / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [3, -1, -1]", "dims: [3, 0, -1]"))
    generate_model(doubler, models, name="runs")
    server = start_triton([models], options=["--strict-readiness=false", "--exit-on-error=false"])
    with InferenceServerClient(server.grpc_address) as client:
        said = {model.name: (model.state, model.reason) for model in client.get_model_repository_index().models}
    assert said.pop("runs") == ("READY", "")
    assert set(said) <= {"tensorrt", "triton-tensorrt", "triton", "poisoned"}
    log = server.log_text
    for name, backend in (("tensorrt", "tensorrt"), ("triton-tensorrt", "onnxruntime"), ("triton", "onnxruntime")):
        reasons = {said[name][1], *re.findall(rf"failed to load '{name}' version 1: (.*)", log)} - {""}
        assert reasons, log
        assert all(f"unable to find backend library for backend '{backend}'" in reason for reason in reasons)
    assert "backend library" not in said.get("poisoned", ("", ""))[1]
    assert "dimension must be integer >= 1, or -1 to indicate a variable-size dimension" in log


def test_the_warm_up_is_run_by_triton(start_triton: Callable[..., Any], pictures: Path, tmp_path: Path) -> None:
    """The same sizes for a backend that the embedded Triton has."""
    generated = generate_model(
        pictures,
        tmp_path / "models",
        deploy_target=DeployTarget.TRITON_TENSORRT,
        precision=Precision.FP16,
        shapes=SHAPES,
    )
    path = generated.path / "config.pbtxt"
    config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    config.ClearField("optimization")
    config.ClearField("platform")
    config.backend = "python"
    config.instance_group[0].kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
    path.write_text(text_format.MessageToString(config))
    (generated.path / "1" / "model.py").write_bytes(model_source("onnx_runner").read_bytes())
    server = start_triton([tmp_path / "models"], options=["--log-verbose=1"])
    with InferenceServerClient(server.grpc_address) as client:
        assert client.is_model_ready("pictures")
    ran = re.findall(r"model 'pictures' instance \S+ is running warmup sample '(\w+)'", server.log_text)
    assert ran == ["smallest", "largest"], server.log_text
