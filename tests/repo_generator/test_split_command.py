"""`tidegate split` and `tidegate profile-blocks`."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import typer
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from tidegate_repo_generator import plugin

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """`run(*arguments)` -> the result, with the commands that the plugin adds."""
    app = typer.Typer()
    for command in plugin.tidegate_commands():
        app.command(command.name)(command.run)
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def model(save_onnx: Callable[..., Path]) -> Path:
    """Four nodes in a row over FP32 [batch, 4], each named after what it makes."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    names = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("Relu", [names[i]], [names[i + 1]], name=names[i + 1]) for i in range(4)]
    return save_onnx(nodes, [x], [y])


def test_a_table_of_the_blocks(run: Run, model: Path, tmp_path: Path) -> None:
    result = run("split", model, "-o", tmp_path / "blocks", "--blocks", 2)
    assert result.exit_code == 0, result.stderr
    for text in ("Model model: 2 blocks", "00", "01", "16", "Verified on 3 random rows: largest difference 0 of"):
        assert text in result.stdout
    assert sorted(file.name for file in (tmp_path / "blocks").iterdir()) == [
        "00.onnx",
        "01.onnx",
        "blocks.json",
        "model.onnx",
    ]


def test_json_for_machines(run: Run, model: Path, tmp_path: Path) -> None:
    result = run("split", model, "-o", tmp_path / "blocks", "--at", "a,b", "--at", "c", "--fp16", "--json")
    manifest = json.loads(result.stdout)
    assert manifest == json.loads((tmp_path / "blocks/blocks.json").read_text())
    assert [block["nodes"] for block in manifest["blocks"]] == [["a"], ["b"], ["c"], ["y"]]
    assert manifest["crossings"][0] == [
        {
            "name": "a_fp16",
            "value": "a",
            "data_type": "FP16",
            "shape": ["batch", 4],
            "bytes_per_row": 8,
            "fp16_bytes_per_row": 8,
        }
    ]
    assert manifest["version"] == 1


def test_batch_dim(run: Run, model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(proto, model)
    refused = run("split", model, "-o", tmp_path / "blocks", "--at", "b")
    assert refused.exit_code == 1
    assert refused.stderr.count("\n") == 1
    assert "--batch-dim" in refused.stderr
    assert run("split", model, "-o", tmp_path / "blocks", "--at", "b", "--batch-dim").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--at", "q"), "error: no node of the main graph makes the tensor 'q'"),
        (("--shape", "x"), "error: --shape x: give NAME:SIZE,SIZE..."),
        (("--shape", "z:4"), "error: --shape z: the model has no such input; its inputs: x"),
        (("--shape", "x:5"), "error: --shape x: it is [4] in the model (-1: any), not [5]"),
        (("--blocks", "9"), "error: the model cannot be cut into 9 blocks: 3 of 3 places are possible"),
    ],
)
def test_an_error_is_one_line_on_stderr(
    run: Run, model: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = run("split", model, "-o", tmp_path / "blocks", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(said)
    assert not (tmp_path / "blocks").exists()


@pytest.fixture
def blocks(run: Run, model: Path, tmp_path: Path) -> Path:
    assert run("split", model, "-o", tmp_path / "blocks", "--at", "b").exit_code == 0
    return tmp_path / "blocks"


def test_profiles_are_added_up(run: Run, blocks: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    first = run("profile-blocks", blocks, "-o", profile, "--rows", "1,2", "--repeats", 2, "--device-class", "l4")
    assert first.exit_code == 0, first.stderr
    assert "Model model, device class l4, share 1/1: median latency (us)" in first.stdout
    assert "not measured" not in first.stderr
    second = run(
        "profile-blocks",
        blocks / "blocks.json",
        "-o",
        profile,
        "--rows",
        "1",
        "--repeats",
        2,
        "--device-class",
        "t4",
    )
    assert "notice: not measured yet: all blocks of device class 't4', share 1, batch 2" in second.stderr
    document = json.loads(profile.read_text())
    assert (document["kind"], document["version"], document["cut_bytes"]) == ("block_profile", 1, [16])
    assert [(table["device_class"], table["rows"]) for table in document["latencies"]] == [("l4", [1, 2]), ("t4", [1])]


def test_imported_profiles(run: Run, blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([{"name": "a + b", "medianMs": 1}, {"name": "c + y", "medianMs": 2}]))
    options = ("--import", "trtexec", "--file", tmp_path / "t.json", "--device-class", "p4", "--rows", "4", "--json")
    result = run("profile-blocks", blocks, "-o", tmp_path / "p.json", *options)
    assert json.loads(result.stdout)["latencies"] == [
        {"device_class": "p4", "share": 1, "rows": [4], "latency_us": [[1000], [2000]]}
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rows", "one"), "--rows one: give numbers of rows"),
        (("--rows", "0"), "a batch has at least 1 row"),
        (("--file", "t.json"), "--file needs --import TOOL"),
        (("--import", "nsys", "--rows", "1"), "--import nsys: give one of trtexec, onnxruntime"),
        (("--import", "trtexec"), "an imported profile is of one batch size"),
        (("--import", "trtexec", "--rows", "1"), "there is nothing to import"),
        (("--provider", "TPU"), "this onnxruntime has no TPU"),
    ],
)
def test_errors_of_profile_blocks(
    run: Run, blocks: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = run("profile-blocks", blocks, "-o", tmp_path / "p.json", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert not (tmp_path / "p.json").exists()


def test_blocks_that_are_not_there(run: Run, tmp_path: Path) -> None:
    result = run("profile-blocks", tmp_path / "none", "-o", tmp_path / "p.json")
    assert result.exit_code == 1
    assert "none: there are no blocks: `tidegate split" in result.stderr


def test_help_has_examples(run: Run) -> None:
    assert "tidegate split recognize.onnx -o blocks" in run("split", "--help").stdout
    assert "--provider CUDAExecutionProvider" in run("profile-blocks", "--help").stdout
