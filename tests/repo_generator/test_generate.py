"""What ends up in a model repository."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import model_config_pb2

from tidegate_repo_generator.generate import DEFAULT_MAX_BATCH, generate_model
from tidegate_repo_generator.model import DeployTarget, GenerateError
from tidegate_triton_models import model_source

SaveOnnx = Callable[..., Path]
ELEMENTS = {
    TensorProto.BOOL: "TYPE_BOOL",
    TensorProto.UINT8: "TYPE_UINT8",
    TensorProto.UINT16: "TYPE_UINT16",
    TensorProto.UINT32: "TYPE_UINT32",
    TensorProto.UINT64: "TYPE_UINT64",
    TensorProto.INT8: "TYPE_INT8",
    TensorProto.INT16: "TYPE_INT16",
    TensorProto.INT32: "TYPE_INT32",
    TensorProto.INT64: "TYPE_INT64",
    TensorProto.FLOAT16: "TYPE_FP16",
    TensorProto.FLOAT: "TYPE_FP32",
    TensorProto.DOUBLE: "TYPE_FP64",
    TensorProto.STRING: "TYPE_STRING",
    TensorProto.BFLOAT16: "TYPE_BF16",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that does not exist yet; nothing else lies beside it but `onnx/`."""
    return tmp_path / "models"


def identity(
    save_onnx: SaveOnnx, shape: list[int | str | None], element: int = TensorProto.FLOAT, name: str = "model.onnx"
) -> Path:
    x, y = (helper.make_tensor_value_info(name, element, shape) for name in "xy")
    return save_onnx([helper.make_node("Identity", ["x"], ["y"])], [x], [y], name=name)


def read_config(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_embedded_deploy_target(doubler: Path, repository: Path) -> None:
    generated = generate_model(doubler, repository, name="double", instances=3, max_batch=16, slo_ms=70)
    config = read_config(repository / "double")
    assert config == text_format.Parse(
        """
        name: "double" backend: "python" max_batch_size: 16
        input { name: "x" data_type: TYPE_FP32 dims: 4 }
        output { name: "y" data_type: TYPE_FP32 dims: 4 }
        instance_group { count: 3 kind: KIND_CPU }
        parameters { key: "slo_ms" value { string_value: "70" } }
        parameters { key: "tidegate_scheduling" value { string_value: "batched" } }
        """,
        model_config_pb2.ModelConfig(),
    )
    assert everything_in(repository / "double").keys() == {"config.pbtxt", "1/model.py", "1/model.onnx"}
    version = repository / "double" / "1"
    assert (version / "model.onnx").read_bytes() == doubler.read_bytes()
    assert (version / "model.py").read_bytes() == model_source("onnx_runner").read_bytes()
    assert generated.path == repository / "double"
    assert generated.files == tuple(map(PurePosixPath, ("1/model.onnx", "1/model.py", "config.pbtxt")))
    assert (generated.name, generated.max_batch_size, generated.notices) == ("double", 16, ())


def test_the_triton_deploy_target(doubler: Path, repository: Path) -> None:
    generate_model(doubler, repository, deploy_target=DeployTarget.TRITON)
    config = read_config(repository / "model")
    assert (config.platform, config.backend) == ("onnxruntime_onnx", "")
    assert config.parameters["tidegate_scheduling"].string_value == "batched"
    assert [(group.count, group.kind) for group in config.instance_group] == [(1, 0)]
    assert everything_in(repository / "model").keys() == {"config.pbtxt", "1/model.onnx"}


def test_the_file_says_why_it_has_no_dynamic_batching(doubler: Path, repository: Path) -> None:
    generate_model(doubler, repository)
    text = (repository / "model" / "config.pbtxt").read_text()
    assert text.startswith("# Written by `tidegate generate` from 'model.onnx'.\n# There is no dynamic_batching")
    assert not read_config(repository / "model").HasField("dynamic_batching")


def test_without_an_slo_there_is_no_parameter(doubler: Path, repository: Path) -> None:
    generate_model(doubler, repository)
    assert set(read_config(repository / "model").parameters) == {"tidegate_scheduling"}


def test_a_model_that_is_not_batched_consents_to_nothing(doubler: Path, repository: Path) -> None:
    generate_model(doubler, repository, max_batch=0)
    assert not read_config(repository / "model").parameters


@pytest.mark.parametrize(("slo_ms", "text"), [(70, "70"), (70.0, "70"), (2.5, "2.5"), (1234567.5, "1234567.5")])
def test_an_slo_keeps_its_digits(doubler: Path, repository: Path, slo_ms: float, text: str) -> None:
    generate_model(doubler, repository, slo_ms=slo_ms)
    assert read_config(repository / "model").parameters["slo_ms"].string_value == text


@pytest.mark.parametrize(("element", "data_type"), ELEMENTS.items(), ids=ELEMENTS.values())
def test_every_type_that_triton_has(save_onnx: SaveOnnx, repository: Path, element: int, data_type: str) -> None:
    path = identity(save_onnx, ["n", 2], element)
    generated = generate_model(path, repository, deploy_target=DeployTarget.TRITON)
    config = read_config(repository / "model")
    names = [model_config_pb2.DataType.Name(entry.data_type) for entry in (*config.input, *config.output)]
    assert names == [data_type, data_type]
    # BF16 cannot be tried: onnxruntime takes no such arrays from Python.
    assert generated.max_batch_size == (0 if element == TensorProto.BFLOAT16 else DEFAULT_MAX_BATCH)


def test_all_of_tritons_types_are_covered() -> None:
    assert {*ELEMENTS.values(), "TYPE_INVALID"} == set(model_config_pb2.DataType.keys())


def test_the_python_backend_has_no_bf16(save_onnx: SaveOnnx, repository: Path) -> None:
    path = identity(save_onnx, ["n", 2], TensorProto.BFLOAT16)
    with pytest.raises(GenerateError, match=r"'x' is BF16, which .* cast it to FP32 .* or .* --deploy-target triton"):
        generate_model(path, repository)


def test_rows_of_one_value_keep_a_dimension(save_onnx: SaveOnnx, repository: Path) -> None:
    generate_model(identity(save_onnx, ["n"]), repository)
    (entry,) = read_config(repository / "model").input
    assert list(entry.dims) == [1]
    assert entry.HasField("reshape")
    assert not entry.reshape.shape


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        pytest.param("det", [3, -1, -1], [1, -1, -1], marks=pytest.mark.slow),
        ("cls", [3, -1, -1], [2]),
        ("rec", [3, -1, -1], [-1, 6625]),
    ],
)
def test_the_ocr_models(
    ocr_models: dict[str, Path], repository: Path, model: str, inputs: list[int], outputs: list[int]
) -> None:
    generated = generate_model(ocr_models[model], repository, name=model)
    config = read_config(repository / model)
    assert config.max_batch_size == DEFAULT_MAX_BATCH
    assert [list(entry.dims) for entry in config.input] == [inputs]
    assert [list(entry.dims) for entry in config.output] == [outputs]
    assert generated.notices == ()


LIGHT = sorted(Path(onnx.__file__).parent.glob("backend/test/data/light/*.onnx"))


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_models_with_a_batch_of_one_are_said_not_to_batch(path: Path, repository: Path) -> None:
    generated = generate_model(path, repository)
    config = read_config(repository / path.stem)
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [1, 3, 224, 224]
    (notice,) = generated.notices
    assert notice == (
        f"Not batched: the first dimension of input '{config.input[0].name}' is fixed at 1. To batch it, free its "
        "batch of 1 with --batch-dim, or export the model with a dynamic first dimension in every input and output."
    )


def test_a_batch_that_cannot_be_is_an_error_when_asked_for(save_onnx: SaveOnnx, repository: Path) -> None:
    path = identity(save_onnx, [1, 2])
    with pytest.raises(GenerateError, match=r"cannot batch: the first dimension of input 'x' is fixed at 1\. Leave"):
        generate_model(path, repository, max_batch=8)
    assert not repository.exists()


def test_no_other_export_is_advised_where_a_node_mixes_rows(save_onnx: SaveOnnx, repository: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy")
    path = save_onnx([helper.make_node("Softmax", ["x"], ["y"], axis=0)], [x], [y])
    assert generate_model(path, repository).notices == (
        "Not batched: node 'y' (Softmax) mixes rows: it normalizes over the rows.",
    )
    with pytest.raises(GenerateError, match=r"Leave --max-batch out to run one request at a time$"):
        generate_model(path, repository, max_batch=8, name="again")


def test_a_max_batch_of_0_is_no_batching_and_no_news(doubler: Path, repository: Path) -> None:
    generated = generate_model(doubler, repository, max_batch=0)
    assert generated.notices == ()
    config = read_config(repository / "model")
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [-1, 4]


def test_what_is_not_clear_is_up_to_the_user(save_onnx: SaveOnnx, repository: Path) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [name, 4]) for name in "abc"]
    path = save_onnx([helper.make_node("Add", ["a", "b"], ["c"])], tensors[:2], tensors[2:])
    cautious = generate_model(path, repository, name="cautious")
    assert cautious.max_batch_size == 0
    assert "If it can, say --max-batch N." in cautious.notices[0]
    told = generate_model(path, repository, name="told", max_batch=8)
    assert told.max_batch_size == 8
    assert told.notices[0].startswith("Batched on your word: the first dimensions of the inputs have different names")


def with_external_data(save_onnx: SaveOnnx, location: str) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    options = {"save_as_external_data": True, "location": location, "size_threshold": 0}
    return save_onnx([helper.make_node("Add", ["x", "w"], ["y"])], [x], [y], [weight], **options)


@pytest.mark.parametrize("deploy_target", DeployTarget)
def test_external_data_comes_along_under_its_name(
    save_onnx: SaveOnnx, repository: Path, deploy_target: DeployTarget
) -> None:
    path = with_external_data(save_onnx, "weights.bin")
    generated = generate_model(path, repository, deploy_target=deploy_target)
    copy = repository / "model" / "1" / "weights.bin"
    assert copy.read_bytes() == np.ones(4, np.float32).tobytes()
    assert PurePosixPath("1/weights.bin") in generated.files
    assert generated.max_batch_size == DEFAULT_MAX_BATCH


def test_external_data_in_the_runners_place_is_refused(save_onnx: SaveOnnx, repository: Path) -> None:
    with pytest.raises(GenerateError, match=r"keeps external data in 'model\.py', where .* save the model again"):
        generate_model(with_external_data(save_onnx, "model.py"), repository)


@pytest.mark.parametrize(
    ("file", "name"), [("a b.v2.onnx", "a_b.v2"), ("résumé.onnx", "r_sum_"), ("..hidden.onnx", "hidden")]
)
def test_names_come_from_the_file(save_onnx: SaveOnnx, repository: Path, file: str, name: str) -> None:
    assert generate_model(identity(save_onnx, [1], name=file), repository).name == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", ".a", "-a", "a b", "a\n"])
def test_bad_names_are_errors(doubler: Path, repository: Path, name: str) -> None:
    with pytest.raises(GenerateError, match="cannot name a model"):
        generate_model(doubler, repository, name=name)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"instances": 0}, "0 instances: a model needs at least 1"),
        ({"max_batch": -1}, "a largest batch of -1 rows: give 1 or more, or 0"),
        ({"max_batch": 2**31}, "a largest batch of 2147483648 rows"),
        ({"slo_ms": 0}, "an SLO of 0 ms: give a positive number"),
        ({"slo_ms": float("nan")}, "an SLO of nan ms"),
        ({"slo_ms": float("inf")}, "an SLO of inf ms"),
    ],
)
def test_bad_numbers_are_errors(doubler: Path, repository: Path, option: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerateError, match=message):
        generate_model(doubler, repository, **option)


def test_an_existing_model_is_replaced_only_by_force(doubler: Path, repository: Path) -> None:
    generate_model(doubler, repository)
    version_2 = repository / "model" / "2"
    version_2.mkdir()
    before = everything_in(repository / "model")
    with pytest.raises(GenerateError, match="model exists: replace it with --force, or choose another --name"):
        generate_model(doubler, repository, slo_ms=5)
    assert everything_in(repository / "model") == before
    generate_model(doubler, repository, slo_ms=5, force=True)
    assert read_config(repository / "model").parameters["slo_ms"].string_value == "5"
    assert not version_2.exists()


def test_force_works_on_the_model_that_is_generated_from(doubler: Path, repository: Path) -> None:
    generate_model(doubler, repository)
    generate_model(repository / "model" / "1" / "model.onnx", repository, force=True)
    assert (repository / "model" / "1" / "model.onnx").read_bytes() == doubler.read_bytes()


def test_force_spares_a_folder_that_is_no_model(doubler: Path, repository: Path) -> None:
    thesis = repository / "model" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("precious")
    with pytest.raises(GenerateError, match=r"is no model of Triton's \(it has no config\.pbtxt\): remove it yourself"):
        generate_model(doubler, repository, force=True)
    assert thesis.read_text() == "precious"


def test_the_same_input_gives_the_same_bytes(doubler: Path, tmp_path: Path) -> None:
    first, second = (generate_model(doubler, tmp_path / name, slo_ms=1).path for name in ("one", "two"))
    assert everything_in(first) == everything_in(second)


def test_a_failed_write_leaves_no_trace(doubler: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate_model(doubler, repository)
    before = everything_in(repository.parent)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(GenerateError, match=r"model cannot be written: .*No space left on device"):
        generate_model(doubler, repository, force=True)
    assert everything_in(repository.parent) == before
    assert sorted(path.name for path in repository.parent.iterdir()) == ["models", "onnx"]


def test_a_failed_swap_puts_the_old_model_back(
    doubler: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_model(doubler, repository)
    before = everything_in(repository.parent)
    rename = Path.rename

    def refuse_new(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(GenerateError, match="Input/output error"):
        generate_model(doubler, repository, slo_ms=5, force=True)
    assert everything_in(repository.parent) == before


def test_a_repository_that_is_a_file(doubler: Path, repository: Path) -> None:
    repository.write_text("")
    with pytest.raises(GenerateError, match="cannot be written"):
        generate_model(doubler, repository)


def test_a_repository_whose_parent_is_of_no_use(
    doubler: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    generate_model(doubler, repository)
    assert [path.name for path in repository.iterdir()] == ["model"]


def test_limits_of_integer_inputs_are_written(save_onnx: SaveOnnx, repository: Path) -> None:
    table = numpy_helper.from_array(np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32), "table")
    path = save_onnx(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, 2])],
        [table],
    )
    generate_model(path, repository)
    assert read_config(repository / "model").parameters["tidegate_input_limits"].string_value == '{"ids": 7}'
