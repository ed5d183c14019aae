"""From a layout to a folder: what is in it, and what is said where layout and blocks do not belong together."""

import json
import shlex
import subprocess
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import typer
import yaml
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner, Result

from tidegate.schemas import (
    Device,
    Layout,
    LayoutWorker,
    Mig,
    Mps,
    Slice,
    WholeDevice,
    device_variable,
    read_deployment,
    read_document,
)
from tidegate_repo_generator import plugin
from tidegate_repo_generator.deploying.places import places_of
from tidegate_repo_generator.deploying.slices import exports

Run = Callable[..., Result]
LAYOUT: dict[str, Any] = {
    "models": [
        {
            "name": "m",
            "slo_ms": 100,
            "pipelines": [{"partitions": ["m.a", "m.b"], "batch": 4}, {"partitions": ["m.whole"], "batch": 2}],
        }
    ],
    "partitions": [
        {"name": "m.a", "model": "m", "blocks": [0, 2], "bytes_per_row": 16, "latency_ms": {"slow": [1, 2, 3, 4]}},
        {"name": "m.b", "model": "m", "blocks": [2, 3], "latency_ms": {"slow": [1, 2, 3, 4]}},
        {"name": "m.whole", "model": "m", "blocks": [0, 3], "latency_ms": {"fast/mps-50": [1, 2, 3, 4]}},
    ],
    "workers": [
        {"name": "slow 0", "device": {"node": "node0", "id": 0, "product": "slow"}, "hosts": ["m.a", "m.b"]},
        {"name": "slow/0", "device": {"node": "node0", "id": 1, "product": "slow"}, "hosts": ["m.a"]},
        {
            "name": "../..",
            "device": {"node": "big", "id": 0, "product": "fast"},
            "slice": {"type": "mps", "percent": 50},
            "hosts": ["m.whole"],
        },
    ],
}


def changed(path: list[Any], value: object) -> dict[str, Any]:
    layout = deepcopy(LAYOUT)
    where: Any = layout
    for step in path[:-1]:
        where = where[step]
    where[path[-1]] = value
    return layout


def test_what_is_in_the_folder(run: Run, tmp_path: Path) -> None:
    result = run(LAYOUT, "--policy", "eager")
    assert result.exit_code == 0, result.stderr
    out = tmp_path / "out"
    deployment = read_deployment(out)
    folders = {worker.name: worker.repository for worker in deployment.workers}
    assert folders == {"slow 0": "workers/slow-0", "slow/0": "workers/slow-0-2", "../..": "workers/worker"}
    weights = {part.name: out / part.file for part in deployment.partitions}
    first, second = (out / folders[name] / "m.a" / "1" / "model.onnx" for name in ("slow 0", "slow/0"))
    assert first.samefile(second)
    assert first.samefile(weights["m.a"])
    assert len(list((out / "weights").iterdir())) == 3
    config = text_format.Parse((second.parents[1] / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert (config.name, config.max_batch_size, config.instance_group[0].count) == ("m.a", 4, 1)
    assert (config.backend, config.HasField("dynamic_batching")) == ("python", False)
    assert (second.parent / "model.py").is_file()
    # `early` is an output of the model that partitions take, which the layout alone would not tell.
    assert read_document(out / "layout.json", Layout).models[0].outputs == ("early", "y")
    proxy = yaml.safe_load((out / "tidegate.yaml").read_text())
    assert (proxy["policy"], proxy["layout"]) == ("eager", "layout.json")
    assert [(t["worker"], t["grpc"]) for t in proxy["tritons"]] == [
        ("slow 0", "127.0.0.1:9001"),
        ("slow/0", "127.0.0.1:9011"),
        ("../..", "127.0.0.1:9021"),
    ]
    x = np.array([[-1, 0, 1, 2]], np.float32)
    (e,) = ort.InferenceSession(weights["m.a"]).run(["e"], {"x": x})
    (y,) = ort.InferenceSession(weights["m.b"]).run(["y"], {"e": e})
    np.testing.assert_allclose(y, -np.exp(np.maximum(x, 0)), rtol=1e-6)


def test_launch_files(run: Run, tmp_path: Path) -> None:
    result = run(LAYOUT, "--deploy-target", "triton", "--host", "10.0.0.1", "--host", "big=10.0.0.2", "--port", 8000)
    assert result.exit_code == 0, result.stderr
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, does in (
        ("tritonserver", 'echo "$CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $@"'),
        ("nvidia-smi", 'echo "GPU-of $*"'),
        ("nvidia-cuda-mps-control", '[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ]'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "pipes" / "gpu-0").mkdir(parents=True)
    (tmp_path / "pipes" / "gpu-0" / "control").touch()
    said = {}
    for worker in read_deployment(tmp_path / "out").workers:
        command = [str(tmp_path / "out" / worker.launch), "--log-verbose=1"]
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "TIDEGATE_MPS": str(tmp_path / "pipes")}
        said[worker.name] = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, cwd="/"
        ).stdout
    workers = tmp_path / "out" / "workers"
    ports = "--http-port={0} --grpc-port={1} --metrics-port={2} --log-verbose=1\n"
    assert said == {
        "slow 0": f"0  --model-repository={workers}/slow-0 " + ports.format(8000, 8001, 8002),
        "slow/0": f"1  --model-repository={workers}/slow-0-2 " + ports.format(8010, 8011, 8012),
        "../..": "GPU-of -i 0 --query-gpu=uuid --format=csv,noheader 50 "
        f"--model-repository={workers}/worker " + ports.format(8000, 8001, 8002),
    }
    assert not list(workers.glob("*/*/1/model.py"))
    assert 'platform: "onnxruntime_onnx"' in (workers / "worker" / "m.whole" / "config.pbtxt").read_text()
    tritons = yaml.safe_load((tmp_path / "out" / "tidegate.yaml").read_text())["tritons"]
    assert [triton["grpc"] for triton in tritons] == ["10.0.0.1:8001", "10.0.0.1:8011", "10.0.0.2:8001"]


@pytest.fixture
def bound(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """`bound(device, slice, **environment)`: what CUDA is told, with stand-ins for nvidia-smi and tidegate."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, said in (
        ("nvidia-smi", 'echo "GPU-of-$2"'),
        ("tidegate", 'echo "MIG-of $1 $2 $4"'),
        ("nvidia-cuda-mps-control", '[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ]'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{said}\n")
        (tools / name).chmod(0o755)

    def run(device: Device, part: Slice, **said: str) -> "subprocess.CompletedProcess[str]":
        worker = LayoutWorker(name="it's w", device=device, slice=part, hosts=("p",))
        script = tmp_path / "script.sh"
        script.write_text("\n".join(["set -eu", "here=/d/workers", *exports(worker), "env | grep ^CUDA | sort"]))
        env = {"PATH": f"{tools}:/usr/bin:/bin", "TIDEGATE_MPS": str(tmp_path), **said}
        return subprocess.run(["sh", script], env=env, capture_output=True, text=True, check=False)

    return run


BY_UUID = Device("n", "GPU-8f6ab4d2-1c7e-4bd4-9c55-6e6b6d2e8a10")
INSTANCE = Device("n", "MIG-3f6ab4d2-1c7e-4bd4-9c55-6e6b6d2e8a10")


@pytest.mark.parametrize(
    ("device", "part", "environment", "visible"),
    [
        (BY_UUID, WholeDevice(), {}, BY_UUID.id),
        (Device("n", 3), WholeDevice(), {}, "3"),
        (Device("n", 3), WholeDevice(), {"TIDEGATE_DEVICE": "1"}, "1"),
        (INSTANCE, Mig("1g.5gb", 0), {}, INSTANCE.id),
        (Device("n", 3), Mig("1g.5gb", 2), {}, "MIG-of mig uuid it's w"),
        (BY_UUID, Mig("1g.5gb", 2), {}, "MIG-of mig uuid it's w"),
        (Device("n", 3), Mig("1g.5gb", 2), {"TIDEGATE_DEVICE": "MIG-1"}, "MIG-1"),
        (Device("n", 3), Mig("1g.5gb", 2), {"TIDEGATE_DEVICE": "visible"}, None),
    ],
)
def test_what_binds_a_worker_to_its_slice(
    bound: Callable[..., Any], device: Device, part: Slice, environment: dict[str, str], visible: str | None
) -> None:
    lines = bound(device, part, **environment).stdout.splitlines()
    assert [line for line in lines if "DEVICES" in line] == ([f"CUDA_VISIBLE_DEVICES={visible}"] if visible else [])
    by_bus = "CUDA_DEVICE_ORDER=PCI_BUS_ID" in lines
    assert by_bus == (part == WholeDevice() and device.id == 3), "as nvidia-smi counts"


@pytest.mark.parametrize(
    ("device", "part", "visible", "pipes"),
    [
        (Device("n", 3), Mps(25, memory_mib=4096), "GPU-of-3", "gpu-3"),
        (BY_UUID, Mps(25, memory_mib=4096), BY_UUID.id, BY_UUID.id),
        (Device("n", 3), Mps(25, 4096, Mig("3g.20gb", 4)), "MIG-of mig uuid it's w", "gpu-3-3g.20gb-4"),
        (INSTANCE, Mps(25, memory_mib=4096), INSTANCE.id, INSTANCE.id),
    ],
)
def test_what_binds_a_worker_to_its_share(
    bound: Callable[..., Any], tmp_path: Path, device: Device, part: Slice, visible: str, pipes: str
) -> None:
    without = bound(device, part)
    assert without.returncode == 1
    assert f"MPS does not run there, without which there are no shares: mps/{pipes}.sh start" in without.stderr
    (tmp_path / pipes).mkdir()
    (tmp_path / pipes / "control").touch()
    assert bound(device, part).stdout.splitlines() == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
        f"CUDA_MPS_PIPE_DIRECTORY={tmp_path / pipes}",
        f"CUDA_VISIBLE_DEVICES={visible}",
    ]


def test_an_instance_that_is_not_found_starts_nothing(bound: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tools" / "tidegate").write_text("#!/bin/sh\necho 'error: no such instance' >&2\nexit 1\n")
    unknown = bound(Device("n", 3), Mig("1g.5gb", 2))
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.splitlines() == [
        "error: no such instance",
        "error: the device is not found: say it with TIDEGATE_DEVICE (nvidia-smi -L)",
    ]


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (changed(["partitions", 1, "blocks"], [2, 4]), "partition 'm.b' has the blocks [2, 4], but"),
        (
            changed(["partitions", 2, "blocks"], [0, 2]),
            "model 'm': the pipeline ['m.whole'] ends with block 2, but",
        ),
        (changed(["models", 0, "outputs"], ["z"]), "no partition of ['m.a', 'm.b'] gives its output 'z'"),
        (changed(["models", 0, "pipelines", 0, "batch"], 9), "latency_ms of 'm.a' on 'slow' ends before the batch 9"),
        (changed(["workers", 1, "hosts"], ["m.z"]), "'slow/0' hosts 'm.z', which is no partition"),
        (changed(["kind"], "plan"), "it is a document of kind 'plan', not 'layout'"),
    ],
)
def test_a_layout_that_does_not_fit_the_blocks(run: Run, tmp_path: Path, layout: dict[str, Any], says: str) -> None:
    result = run(layout)
    assert result.exit_code == 1
    assert says in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"layout.json"}, "something was left half written"


@pytest.mark.parametrize(
    ("options", "folder", "says"),
    [
        (["--blocks", "m=nowhere"], None, "'m' is given twice"),
        ([], "x=nowhere", "has no model 'x'; it has m"),
        ([], "m=nowhere", "there is no nowhere/blocks.json; give a folder that `tidegate split` wrote"),
        (["--blocks", "n=nowhere"], None, "has no model 'n'; it has m"),
        ([], "m=", "--blocks m=: give NAME=VALUE"),
        (["--host", "far=10.0.0.1"], None, "the layout has no such node; it has big, node0"),
        (["--node", "far=gpu-1"], None, "--node far=gpu-1: the layout has no such node; it has node0, big"),
        (["--node", "gpu-1"], None, "--node gpu-1: say of which it is the name; the layout has node0, big"),
        (["--node", "node0=x", "--node", "big=x"], None, "'node0' and 'big' would both be 'x': give each its own"),
        (["--node", "node0=big"], None, "'node0' and 'big' would both be 'big': give each its own name"),
        (["--node", "node0=gpu-1", "--host", "node0=10.0.0.1"], None, "no such node; it has big, gpu-1"),
        (["--port", "65530"], None, "worker 'slow/0': no port is left on 127.0.0.1"),
    ],
)
def test_options_that_name_what_is_not_there(
    run: Run, blocks: Path, tmp_path: Path, options: list[str], folder: str | None, says: str
) -> None:
    result = run(LAYOUT, *options, folder=folder or f"m={blocks}")
    assert result.exit_code == 1
    assert says in result.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_to_be_typed_next_can_be_typed(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "it is mine"
    said = run(LAYOUT, "-o", folder).stdout.splitlines()[-1]
    assert shlex.split(said)[-3:] == ["tidegate", "up", str(folder)]
    said = run(LAYOUT, "-o", folder, "--deploy-target", "triton", "--force").stdout.splitlines()[-1]
    assert shlex.split(said.partition("; then ")[2])[-1] == f"{folder}/tidegate.yaml"


def test_a_policy_that_is_not_installed_is_noticed(run: Run) -> None:
    """It may be installed where the proxy runs, so it is no error."""
    result = run(LAYOUT, "--policy", "simphony")
    assert result.exit_code == 0
    assert "notice: no policy named 'simphony' is installed; did you mean 'symphony'? Installed: " in result.stderr
    assert "say another --policy, or install it there" in result.stderr
    (notice,) = json.loads(run(LAYOUT, "--policy", "simphony", "--force", "--json").stdout)["notices"]
    assert "simphony" in notice
    assert run(LAYOUT, "--policy", "ppipe", "--force").stderr == ""


def test_a_policy_that_does_not_serve_the_layout_is_noticed(run: Run) -> None:
    result = run(LAYOUT, "--policy", "elsa")
    assert result.exit_code == 0
    assert "notice: policy 'elsa' does not serve this layout: it schedules whole models only, and 'm'" in result.stderr


def test_a_model_without_blocks(run: Run, blocks: Path) -> None:
    text = json.dumps(LAYOUT)
    other = json.loads(text.replace('"m.', '"n.').replace('"m"', '"n"'))
    both = {key: [*LAYOUT[key], *other[key]] for key in ("models", "partitions")}
    both["workers"] = [*LAYOUT["workers"], {**other["workers"][0], "name": "n0"}, {**other["workers"][2], "name": "n1"}]
    assert "model 'n' has no blocks: say where `tidegate split` wrote them, with --blocks n=DIR" in run(both).stderr
    assert "has 2 models, so say of which it is" in run(both, folder=blocks).stderr


def test_partitions_whose_names_can_name_no_model(run: Run) -> None:
    text = json.dumps(LAYOUT).replace("m.whole", "m/whole")
    assert "'m/whole' cannot name a model" in run(json.loads(text)).stderr


def test_the_one_model_need_not_be_named_and_other_bytes_are_noticed(run: Run, blocks: Path) -> None:
    result = run(changed(["partitions", 0, "bytes_per_row"], 8), folder=blocks)
    assert result.exit_code == 0
    assert "notice: partition 'm.a' sends 16 bytes per row, and the layout was planned with 8" in result.stderr


def test_what_is_there_is_replaced_on_demand_only_and_never_while_it_runs(run: Run, tmp_path: Path) -> None:
    assert run(LAYOUT).exit_code == 0
    assert "exists: replace it with --force" in run(LAYOUT).stderr
    assert run(LAYOUT, "--force").exit_code == 0
    (tmp_path / "out" / "run").mkdir()
    (tmp_path / "out" / "run" / "state.json").write_text("{}")
    assert "is in use: `tidegate down" in run(LAYOUT, "--force").stderr
    (tmp_path / "out" / "deployment.json").unlink()
    assert "was not written by `tidegate generate`" in run(LAYOUT, "--force").stderr


def test_options_of_models_and_of_layouts_are_kept_apart(run: Run, blocks: Path, tmp_path: Path) -> None:
    for option, value in (("--slo-ms", 3), ("--name", "m"), ("--instances", 1), ("--max-batch", 0)):
        refused = run(LAYOUT, option, value)
        assert refused.exit_code == 2
        assert "is a layout, which says that itself" in " ".join(refused.stderr.replace("│", " ").split())
        assert option in refused.stderr
    app = typer.Typer()
    app.command()(plugin.tidegate_commands()[0].run)
    for option, text in (("--policy", "fifs"), ("--port", "9000"), ("--node", "a=b"), ("--blocks", "x")):
        result = CliRunner().invoke(app, [str(blocks / "00.onnx"), "-o", str(tmp_path / "models"), option, text])
        assert result.exit_code == 2
        assert option in result.stderr


NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(["x", "X", "x.sh", "x.build", "x.build.sh", "x.sh.sh"])


def test_no_two_workers_have_their_device_from_one_variable() -> None:
    """Names that differ in what a variable's name cannot have: both would be given one MIG instance."""
    workers = [LayoutWorker(name=name, device=Device("n", 0), hosts=("p",)) for name in ("w.1", "w-1", "w_1", "W 1")]
    places = places_of(workers, {}, 9000).values()
    assert len({device_variable(f"workers/{place.folder}") for place in places}) == len(workers)


@given(st.lists(NAMES, min_size=1, max_size=20, unique=True))
def test_every_worker_has_a_folder_and_ports_of_its_own(names: list[str]) -> None:
    workers = [LayoutWorker(name=name, device=Device("n", 0), hosts=("p",)) for name in names]
    places = places_of(workers, {}, 9000).values()
    folders = [place.folder for place in places]
    files = [f"{folder}{ending}".lower() for folder in folders for ending in ("", ".sh", ".build.sh")]
    assert len(set(files)) == len(files)
    assert not any(folder.startswith((".", "-")) or "/" in folder for folder in folders)
    assert len({port for p in places for port in (p.http_port, p.grpc_port, p.metrics_port)}) == 3 * len(names)
