"""Engines: what is written of them, and the script that builds and checks them, with a stand-in for `tensorrt`.

Whether the stand-in's names are those of NVIDIA's module is looked up where that is installed.
"""

import importlib.util
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner, Result

from tests.repo_generator.tensorrt.fake_tensorrt import FakeTensorrt
from tidegate_repo_generator import plugin
from tidegate_repo_generator.generate import generate_model
from tidegate_repo_generator.model import DeployTarget, GenerateError, Precision
from tidegate_repo_generator.tensorrt import build_engine

SaveOnnx = Callable[..., Path]
Build = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pictures(save_onnx: SaveOnnx) -> Path:
    """`y = -x` over FP32 [batch, 3, height, width]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, "h", "w"]) for name in "xy")
    return save_onnx([helper.make_node("Neg", ["x"], ["y"])], [x], [y], name="pictures.onnx")


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> FakeTensorrt:
    fake = FakeTensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    return fake


@pytest.fixture
def build(capsys: pytest.CaptureFixture[str]) -> Build:
    """`build(engine.json, *options)` -> status, stdout, stderr of the script."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = build_engine.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


def config_of(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def tensorrt(model: Path, repository: Path, *shapes: tuple[int, ...], **options: Any) -> Path:
    generated = generate_model(
        model,
        repository,
        name="m",
        deploy_target=DeployTarget.TENSORRT,
        shapes=[{"x": shape} for shape in shapes],
        **options,
    )
    return generated.path


def test_an_engine_is_described_and_built_for_all_between_the_extremes(
    pictures: Path, tmp_path: Path, trt: FakeTensorrt, build: Build
) -> None:
    folder = tensorrt(pictures, tmp_path, (3, 48, 320), (3, 64, 160), max_batch=8, precision=Precision.FP16)
    config = config_of(folder)
    assert (config.platform, config.max_batch_size, list(config.input[0].dims)) == ("tensorrt_plan", 8, [3, -1, -1])
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    status, out, errors = build(folder / "engine.json")
    assert (status, errors) == (0, "")
    assert "model.plan was built for fp16" in out
    (built,) = trt.built
    assert built["flags"] == ["FP16"]
    assert built["tensors"]["x"]["profile"] == ((1, 3, 48, 160), (8, 3, 48, 320), (8, 3, 64, 320))
    assert json.loads((folder / "1" / "model.plan").read_bytes())
    assert build(folder / "engine.json") == (0, f"{folder}/1/model.plan is as described\n", "")
    assert build(folder / "engine.json", "--check")[0] == 0
    assert len(trt.built) == 1
    build(folder / "engine.json", "--force")
    assert len(trt.built) == 2


def test_the_copy_beside_the_model_runs_alone(pictures: Path, tmp_path: Path, trt: FakeTensorrt) -> None:
    """It imports nothing of ours, and finds the engine.json beside it."""
    folder = tensorrt(pictures, tmp_path, (3, 48, 320))
    with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["build_engine.py"])
        runpy.run_path(str(folder / "build_engine.py"), run_name="__main__")
    assert ended.value.code == 0
    assert (folder / "1" / "model.plan").is_file()
    assert "tidegate_repo_generator" not in (folder / "build_engine.py").read_text()


def test_without_tensorrt_it_says_where_there_is_one(pictures: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("tensorrt is installed here")
    folder = tensorrt(pictures, tmp_path, (3, 48, 320))
    done = subprocess.run(
        [sys.executable, folder / "build_engine.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "nvcr.io/nvidia/tensorrt" in done.stderr


@pytest.mark.parametrize(
    ("poison", "said"),
    [
        (lambda tensors: tensors["x"].update(type="HALF"), "input 'x' is FP16, not FP32"),
        (
            lambda tensors: tensors["y"].update(shape=[-1, 4, -1, -1]),
            "'y' is [-1, 4, -1, -1], not [-1, 3, -1, -1]",
        ),
        (lambda tensors: tensors.update(z=dict(tensors["y"])), "it has the output 'z' besides"),
        (lambda tensors: tensors.pop("y"), "it has no output 'y'"),
        (
            lambda tensors: tensors["x"].update(shape=[8, 3, 48, 320]),
            "takes [8, 3, 48, 320] to [8, 3, 48, 320], not",
        ),
        (
            lambda tensors: tensors["x"].update(profile=[[1, 3, 48, 320]] * 2 + [[4, 3, 48, 320]]),
            "input 'x' takes [1, 3, 48, 320] to [4, 3, 48, 320], not [1, 3, 48, 320] to [8, 3, 48, 320]",
        ),
    ],
)
def test_an_engine_whose_tensors_are_others_takes_nobodys_place(
    pictures: Path, tmp_path: Path, trt: FakeTensorrt, build: Build, poison: Callable[[Any], object], said: str
) -> None:
    folder = tensorrt(pictures, tmp_path, (3, 48, 320), max_batch=8)
    assert build(folder / "engine.json")[0] == 0
    good = (folder / "1" / "model.plan").read_bytes()
    trt.poison = poison
    status, _, errors = build(folder / "engine.json", "--force")
    assert status == 1
    assert said in errors
    assert "Nothing was written" in errors
    assert (folder / "1" / "model.plan").read_bytes() == good
    assert [path.name for path in (folder / "1").iterdir() if path.name.startswith(".")] == []


def test_what_another_container_is_writing_is_left_alone(
    pictures: Path, tmp_path: Path, trt: FakeTensorrt, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pods that share a volume all processes may have the same number, and one engine is of several pods."""
    monkeypatch.setattr("os.getpid", lambda: 7)
    folder = tensorrt(pictures, tmp_path, (3, 48, 320))
    half = folder / "1" / ".model.plan.7"
    half.write_bytes(b"half")
    assert build(folder / "engine.json")[0] == 0
    assert half.read_bytes() == b"half"


def test_a_check_builds_nothing(pictures: Path, tmp_path: Path, trt: FakeTensorrt, build: Build) -> None:
    folder = tensorrt(pictures, tmp_path, (3, 48, 320))
    status, _, errors = build(folder / "engine.json", "--check")
    assert (status, trt.built) == (1, [])
    assert "model.plan: it is not there: build it with build_engine.py" in errors
    (folder / "1" / "model.plan").write_bytes(b"of another version")
    status, _, errors = build(folder / "engine.json", "--check")
    assert status == 1
    assert "TensorRT 10.9.0 does not load it on this device" in errors


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        (FakeTensorrt("11.1.0"), "takes the precision from the model itself and has no fp16"),
        (FakeTensorrt(gpu=False), "finds no GPU here"),
    ],
    ids=["TensorRT 11", "no GPU"],
)
def test_what_tensorrt_cannot_do_is_said(
    pictures: Path, tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch, fake: FakeTensorrt, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    folder = tensorrt(pictures, tmp_path, (3, 48, 320), precision=Precision.FP16)
    status, _, errors = build(folder / "engine.json")
    assert status == 1
    assert said in errors
    assert not (folder / "1" / "model.plan").exists()


def test_tensorrt_11_builds_what_the_model_is(
    pictures: Path, tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTensorrt("11.1.0")
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    status, out, errors = build(tensorrt(pictures, tmp_path, (3, 48, 320)) / "engine.json")
    assert (status, errors, fake.built[0]["flags"]) == (0, "", [])
    assert "was built for fp32" in out


def test_what_the_parser_lacks_stands_in_the_error(
    save_onnx: SaveOnnx, tmp_path: Path, trt: FakeTensorrt, build: Build
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
    folder = tensorrt(save_onnx([helper.make_node("Hardmax", ["x"], ["y"])], [x], [y]), tmp_path)
    status, _, errors = build(folder / "engine.json")
    assert status == 1
    assert "no importer for Hardmax" in errors
    assert "--deploy-target triton-tensorrt" in errors


def test_fixed_sizes_need_no_range(save_onnx: SaveOnnx, tmp_path: Path, trt: FakeTensorrt, build: Build) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy")
    folder = tensorrt(save_onnx([helper.make_node("Neg", ["x"], ["y"])], [x], [y]), tmp_path)
    assert build(folder / "engine.json")[0] == 0
    assert "profile" not in trt.built[0]["tensors"]["x"]


@pytest.mark.parametrize(
    ("shapes", "options", "said"),
    [
        ([], {}, "input 'x' leaves sizes open, [3, any, any]"),
        ([{"x": (3, 48)}], {}, "it is [3, any, any] in the model, without the rows, and [3, 48] does not fit"),
        ([{"x": (4, 48, 320)}], {}, "and [4, 48, 320] does not fit"),
        ([{"z": (3, 48, 320)}], {}, "has no such input; its inputs: x"),
        ([{"x": (3, 48, 320)}], {"precision": Precision.INT8}, "is not quantized (it has no QuantizeLinear)"),
        (
            [],
            {"deploy_target": DeployTarget.TRITON, "precision": Precision.FP16},
            "--deploy-target triton has no TensorRT",
        ),
        ([{"x": (3, 48, 320)}], {"deploy_target": DeployTarget.EMBEDDED}, "--deploy-target embedded has no TensorRT"),
        (
            [{"x": (3, 48, 320)}],
            {"deploy_target": DeployTarget.TRITON_TENSORRT, "precision": Precision.BF16},
            "backend has fp32, fp16, int8 only",
        ),
    ],
)
def test_refusals(
    pictures: Path, tmp_path: Path, shapes: list[dict[str, tuple[int, ...]]], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(GenerateError) as refused:
        generate_model(pictures, tmp_path, **{"deploy_target": DeployTarget.TENSORRT, **options}, shapes=shapes)
    assert said in str(refused.value)
    assert list(tmp_path.glob("pictures")) == []


def test_types_that_tensorrt_lacks(save_onnx: SaveOnnx, tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n", 3]) for name in "xy")
    with pytest.raises(GenerateError, match="'x' is FP64, which TensorRT cannot take or give"):
        tensorrt(save_onnx([helper.make_node("Neg", ["x"], ["y"])], [x], [y]), tmp_path)


@pytest.mark.parametrize("deploy_target", [DeployTarget.TENSORRT, DeployTarget.TRITON_TENSORRT])
@pytest.mark.parametrize("through", ["directly", "computed"])
def test_values_that_decide_a_shape(
    save_onnx: SaveOnnx, tmp_path: Path, deploy_target: DeployTarget, through: str
) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    target = helper.make_tensor_value_info("target", TensorProto.INT64, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, "h", "w"])
    nodes = [helper.make_node("Resize", ["x", "", "", "target"], ["y"], name="resize", mode="nearest")]
    if through == "computed":
        nodes[0].input[3] = "sizes"
        nodes.insert(0, helper.make_node("Add", ["target", "target"], ["sizes"]))
    path = save_onnx(nodes, [x, target], [y])
    with pytest.raises(
        GenerateError, match=r"values of input 'target' decide a shape .node 'resize'.*--deploy-target triton"
    ):
        generate_model(path, tmp_path / "models", deploy_target=deploy_target, max_batch=0)
    generate_model(path, tmp_path / "models", deploy_target=DeployTarget.TRITON, max_batch=0)


def test_tensorrt_has_no_scalars(save_onnx: SaveOnnx, tmp_path: Path) -> None:
    x, s = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [4]), ("s", [])))
    path = save_onnx([helper.make_node("Mul", ["x", "s"], ["y"])], [x, s], [helper.make_tensor_value_info("y", 1, [4])])
    with pytest.raises(GenerateError, match="'s' is a scalar, which Triton's TensorRT backend does not have"):
        generate_model(path, tmp_path / "models", deploy_target=DeployTarget.TENSORRT, max_batch=0)


def test_the_accelerator_and_its_warm_up(pictures: Path, tmp_path: Path) -> None:
    generated = generate_model(
        pictures,
        tmp_path,
        deploy_target=DeployTarget.TRITON_TENSORRT,
        precision=Precision.FP16,
        shapes=[{"x": (3, 48, 320)}, {"x": (3, 48, 160)}],
        max_batch=8,
    )
    config = config_of(generated.path)
    assert config.platform == "onnxruntime_onnx"
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert dict(accelerator.parameters) == {"precision_mode": "FP16", "trt_engine_cache_enable": "true"}
    warm = {sample.name: (sample.batch_size, list(sample.inputs["x"].dims)) for sample in config.model_warmup}
    assert warm == {"smallest": (1, [3, 48, 160]), "largest": (8, [3, 48, 320])}


def test_shapes_of_a_profile_file(pictures: Path, tmp_path: Path) -> None:
    entry = {
        "model": "m",
        "alpha_ms": 1,
        "beta_ms": 0,
        "points": [{"rows": 1, "median_ms": 1, "p95_ms": 1, "samples": 9}],
    }
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps({"profiles": [{**entry, "shape": f"x:3,48,{width}"} for width in (320, 640)]}))
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("generate")(plugin.tidegate_commands()[0].run)
    arguments = [
        "generate",
        pictures,
        "-o",
        tmp_path / "models",
        "--name",
        "m",
        "--deploy-target",
        "tensorrt",
        "--profiles",
    ]

    def run(*more: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in (*arguments, *more)])

    done = run(measured)
    assert done.exit_code == 0, done.output
    (entry,) = json.loads((tmp_path / "models" / "m" / "engine.json").read_text())["inputs"]
    assert (entry["min"], entry["opt"], entry["max"]) == ([1, 3, 48, 320], [32, 3, 48, 320], [32, 3, 48, 640])
    refused = run(measured, "--name", "other")
    assert "nothing was measured of 'other'; measured models: m" in refused.stderr
    assert "profile" in run(tmp_path / "absent.json", "--force").stderr


def test_the_stand_in_has_nvidias_names() -> None:
    real = pytest.importorskip("tensorrt", reason="needs NVIDIA's tensorrt")
    for name in ("Builder", "OnnxParser", "Runtime", "Logger", "NetworkDefinitionCreationFlag", "BuilderFlag"):
        assert hasattr(real, name)
    for kind, names in (
        (real.Builder, ("create_network", "create_builder_config", "create_optimization_profile")),
        (real.Builder, ("build_serialized_network",)),
        (real.IBuilderConfig, ("add_optimization_profile", "set_flag")),
        (real.IOptimizationProfile, ("set_shape",)),
        (real.OnnxParser, ("parse_from_file", "get_error", "num_errors")),
        (real.ICudaEngine, ("num_io_tensors", "get_tensor_name", "get_tensor_mode", "get_tensor_dtype")),
        (real.ICudaEngine, ("get_tensor_shape", "get_tensor_profile_shape")),
        (real.Runtime, ("deserialize_cuda_engine",)),
    ):
        for name in names:
            assert hasattr(kind, name), name
