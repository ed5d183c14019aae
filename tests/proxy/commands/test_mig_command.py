"""`tidegate mig`, from a layout to a GPU that is cut and to the UUIDs that launch files ask for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py, the extra `nvml` of tidegate-proxy")

from tests.proxy.tritons.mig.fake_nvml import FakeNvml, Gpu  # noqa: E402
from tidegate.schemas import DEPLOYMENT_FILE, LAYOUT_FILE, Layout, write_document  # noqa: E402
from tidegate_proxy.commands.mig import mig  # noqa: E402

UUIDS = [f"GPU-0000000{number}-2222-3333-4444-555555555555" for number in range(3)]
Run = Callable[..., Result]


def worker(name: str, gpu: int | str, node: str = "a", **part: Any) -> dict[str, Any]:
    return {
        "name": name,
        "device": {"node": node, "id": gpu, "product": "A100"},
        "slice": part,
        "hosts": ["m"],
        "device_class": "k",
    }


def on(profile: str, start: int) -> dict[str, Any]:
    return {"type": "mig", "profile": profile, "start": start}


WORKERS = [
    worker("four", 0, **on("4g.20gb", 0)),
    worker("share 0", 0, type="mps", percent=70, instance=on("3g.20gb", 4)),
    worker("share 1", 0, type="mps", percent=30, instance=on("3g.20gb", 4)),
    worker("third", 1, **on("1g.5gb", 4)),
    worker("first", 1, **on("1g.5gb", 0)),
    worker("whole", UUIDS[2], type="whole"),
    worker("elsewhere", 0, "b", **on("7g.40gb", 0)),
]


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A folder with what `tidegate mig` reads of a deployment."""
    layout = Layout.model_validate(
        {
            "models": [{"name": "m", "pipelines": [{"partitions": ["m"], "batch": 1}]}],
            "partitions": [{"name": "m", "model": "m", "blocks": [0, 1], "latency_ms": {"k": [1]}}],
            "workers": WORKERS,
        }
    )
    folder = tmp_path / "deployment"
    folder.mkdir()
    write_document(folder / LAYOUT_FILE, layout)
    workers = [
        {
            "name": each.name,
            "repository": f"workers/{each.name.replace(' ', '-')}",
            "launch": "x",
            "device": {"node": "a", "id": 0},
            "slice": {"type": "whole"},
            "hosts": ["m"],
        }
        for each in layout.workers
    ]
    parts = [{"name": "m", "model": "m", "blocks": [0, 1], "file": "m.onnx", "inputs": [], "outputs": []}]
    written = {"kind": "deployment", "deploy_target": "triton", "partitions": parts, "workers": workers}
    (folder / DEPLOYMENT_FILE).write_text(json.dumps(written))
    return folder


@pytest.fixture
def gpus() -> list[Gpu]:
    return [Gpu(UUIDS[0]), Gpu(UUIDS[1]), Gpu(UUIDS[2], now=False, then=False)]


@pytest.fixture
def nvml(gpus: list[Gpu], monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml(*gpus)
    monkeypatch.setattr("tidegate_proxy.tritons.mig.nvml.import_module", lambda name: fake)
    monkeypatch.setattr("platform.node", lambda: "a")
    return fake


@pytest.fixture
def run() -> Run:
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("mig")(mig)
    return lambda *arguments: CliRunner().invoke(app, ["mig", *map(str, arguments)])


def test_a_layout_is_brought_about_only_with_yes(run: Run, nvml: FakeNvml, gpus: list[Gpu], deployment: Path) -> None:
    nvml.make(gpus[1], "1g.5gb", 0, pids=(7,))
    nvml.make(gpus[1], "2g.10gb", 4)
    a100 = "A100-SXM4-40GB"
    differs = [
        f"+ GPU 0 ({a100}): 4g.20gb at 0",
        f"+ GPU 0 ({a100}): 3g.20gb at 4",
        f"  GPU 1 ({a100}): 1g.5gb at 0",
        f"- GPU 1 ({a100}): 2g.10gb at 4",
        f"+ GPU 1 ({a100}): 1g.5gb at 4",
    ]
    assert run("diff", deployment).stdout.splitlines() == differs
    without = run("apply", deployment)
    assert (without.exit_code, without.stdout.splitlines()) == (1, [*differs, "Nothing is changed: do it with --yes."])
    assert nvml.changed == []
    done = run("apply", deployment / LAYOUT_FILE, "--yes")
    assert done.exit_code == 0
    assert [gpu.cut() for gpu in gpus] == [{"4g.20gb": [0], "3g.20gb": [4]}, {"1g.5gb": [0, 4]}, {}]
    assert run("diff", deployment).stdout == "The GPUs here are cut as the layout wants it.\n"
    assert run("apply", deployment).exit_code == 0
    assert json.loads(run("diff", deployment, "--json").stdout) == []


def test_what_is_in_use_can_be_left_for_later(run: Run, nvml: FakeNvml, gpus: list[Gpu], deployment: Path) -> None:
    busy = nvml.make(gpus[0], "7g.40gb", 0, pids=(7, 8))
    refused = run("apply", deployment, "--yes")
    assert refused.exit_code == 1
    assert "is in use, by pid 7, 8: stop what runs there first, or leave it for later with --unused" in refused.stderr
    assert nvml.changed == []
    later = "! GPU 0 (A100-SXM4-40GB): 7g.40gb at 0 is in use, by pid 7, 8: later"
    done = run("apply", deployment, "--yes", "--unused")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, later)
    assert [gpu.cut() for gpu in gpus] == [{"7g.40gb": [0]}, {"1g.5gb": [0, 4]}, {}]
    again = run("apply", deployment, "--yes", "--unused")
    assert (again.exit_code, again.stdout.splitlines()) == (0, [later])
    (change,) = json.loads(run("diff", deployment, "--unused", "--json").stdout)
    assert (change["go"], change["come"], change["later"]) == ([], [], ["7g.40gb at 0"])
    busy.parts[0].pids.clear()
    assert run("apply", deployment, "--yes", "--unused").exit_code == 0
    assert gpus[0].cut() == {"4g.20gb": [0], "3g.20gb": [4]}


def test_a_file_that_is_no_layout_is_one_error(run: Run, nvml: FakeNvml, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    for action in ("plan", "diff", "apply"):
        said = run(action, tmp_path / "empty.yaml")
        assert said.exit_code == 1
        assert said.stderr == f"error: {tmp_path / 'empty.yaml'}: is empty\n"
    assert nvml.changed == []


def test_what_there_is_and_what_is_planned(run: Run, nvml: FakeNvml, gpus: list[Gpu], deployment: Path) -> None:
    made = nvml.make(gpus[0], "3g.20gb", 4, pids=(7,))
    shown = run("show").stdout
    for text in ("A100-SXM4-40GB", "3g.20gb at 4", "off"):
        assert text in shown
    (first, _, third) = json.loads(run("show", "--json").stdout)
    assert first["instances"] == [{"profile": "3g.20gb", "start": 4, "uuid": made.parts[0].uuid, "processes": [7]}]
    assert (third["mig"], third["instances"], third["uuid"]) == ("off", [], UUIDS[2])
    planned = run("plan", deployment).stdout.splitlines()
    assert planned == [
        "node a, GPU 0 (A100): 4g.20gb at 0, 3g.20gb at 4",
        "node a, GPU 1 (A100): 1g.5gb at 0, 1g.5gb at 4",
        f"node a, GPU {UUIDS[2]} (A100): not cut",
        "node b, GPU 0 (A100): 7g.40gb at 0",
    ]
    (only,) = json.loads(run("plan", deployment, "--node", "b", "--json").stdout)["b"]
    assert only == {"gpu": 0, "instances": [{"profile": "7g.40gb", "start": 0}]}


def test_launch_files_are_told_the_uuid_of_what_a_worker_has(
    run: Run, nvml: FakeNvml, gpus: list[Gpu], deployment: Path
) -> None:
    four, three = nvml.make(gpus[0], "4g.20gb", 0), nvml.make(gpus[0], "3g.20gb", 4)
    high, low = nvml.make(gpus[1], "1g.5gb", 6), nvml.make(gpus[1], "1g.5gb", 4)
    uuids = {
        "four": four.parts[0].uuid,
        "share 0": three.parts[0].uuid,
        "share 1": three.parts[0].uuid,
        "third": low.parts[0].uuid,
        "first": high.parts[0].uuid,  # not where the layout has it, but of the same profile
        "whole": UUIDS[2],
    }
    assert {name: run("uuid", deployment, name).stdout.strip() for name in uuids} == uuids
    variables = dict(line.split("=") for line in run("env", deployment).stdout.splitlines())
    assert variables == {
        "TIDEGATE_FOUR": uuids["four"],
        "TIDEGATE_SHARE_0": uuids["share 0"],
        "TIDEGATE_SHARE_1": uuids["share 1"],
        "TIDEGATE_THIRD": uuids["third"],
        "TIDEGATE_FIRST": uuids["first"],
    }


def test_who_is_not_told_places_gets_different_instances_of_the_profile(
    run: Run, nvml: FakeNvml, gpus: list[Gpu], deployment: Path
) -> None:
    made = [nvml.make(gpus[1], "1g.5gb", start).parts[0].uuid for start in (0, 4)]
    nvml.root = False
    found = [run("uuid", deployment, name).stdout.strip() for name in ("first", "third")]
    assert found == made
    assert [run("uuid", deployment, name).stdout.strip() for name in ("first", "third")] == found


def test_workers_of_a_gpu_that_has_two_names_are_not_given_one_instance(
    run: Run, nvml: FakeNvml, gpus: list[Gpu], deployment: Path
) -> None:
    nvml.make(gpus[1], "1g.5gb", 0)
    text = (deployment / LAYOUT_FILE).read_text()
    layout = json.loads(text)
    layout["workers"][3]["device"]["id"] = UUIDS[1]
    (deployment / LAYOUT_FILE).write_text(json.dumps(layout))
    for arguments in (["uuid", deployment, "first"], ["env", deployment]):
        refused = run(*arguments)
        assert refused.exit_code == 1
        assert f"is {UUIDS[1]} in the layout, and 1, too: call it by one of them everywhere" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["diff"], 2, "diff needs a layout, or the folder of a"),
        (["uuid", "{}"], 2, "uuid needs one: DIR WORKER"),
        (["diff", "{}", "four"], 2, "only uuid takes one, diff does not"),
        (["diff", "{}", "--yes"], 2, "is for apply"),
        (["plan", "{}", "--unused"], 2, "is for diff and apply"),
        (["diff", "{}", "--node", "c"], 1, "--node c: the layout has no such node; it has a, b"),
        (["diff", "{}/absent.json"], 1, "absent.json: No such file"),
        (["uuid", "{}", "fifth"], 1, "the layout has no worker 'fifth'; it has four, share 0,"),
        (["uuid", "{}", "four"], 1, "has no instance 4g.20gb for what the layout has at 0; its instances: none."),
        (["uuid", "{}", "elsewhere", "--node", "a"], 1, "worker 'elsewhere' is in node 'b', and this is 'a'"),
    ],
)
def test_errors(run: Run, nvml: FakeNvml, deployment: Path, arguments: list[str], status: int, said: str) -> None:
    result = run(*(argument.format(deployment) for argument in arguments))
    assert result.exit_code == status
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert nvml.changed == []


def test_a_machine_of_another_name_asks_which_it_is(
    run: Run, nvml: FakeNvml, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "host-7")
    assert (
        "this machine is called host-7, and the layout has the nodes a, b: say --node" in run("diff", deployment).stderr
    )
    assert run("diff", deployment, "--node", "b").stdout == "+ GPU 0 (A100-SXM4-40GB): 7g.40gb at 0\n"


def test_without_privileges_nothing_is_tried(run: Run, nvml: FakeNvml, deployment: Path) -> None:
    nvml.root = False
    result = run("apply", deployment, "--yes")
    assert result.exit_code == 1
    assert result.stderr.count("run it as root") == 2
    assert nvml.changed == []
