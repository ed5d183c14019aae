"""What full Tritons need in their nodes: MIG, MPS, TensorRT. All files are read by who will read them."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from typer.testing import Result

from tests.repo_generator.deploying.mig_parted_schema import MIG_PARTED
from tests.repo_generator.deploying.sliced_layout import LAYOUT
from tests.repo_generator.tensorrt.fake_tensorrt import FakeTensorrt
from tidegate_repo_generator.tensorrt import build_engine

Run = Callable[..., Result]


def test_how_the_gpus_are_cut(out: Path) -> None:
    cuts = {path.stem: yaml.safe_load(path.read_text()) for path in (out / "mig").iterdir()}
    for document in cuts.values():
        jsonschema.validate(document, MIG_PARTED)
    assert cuts["a"]["mig-configs"]["tidegate"] == [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"3g.20gb": 1, "4g.20gb": 1}},
        {"devices": [1, 2], "mig-enabled": False},
    ]
    assert cuts["b"]["mig-configs"]["tidegate"] == [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.5gb": 6, "1g.5gb+me": 1}},
        {"devices": [1], "mig-enabled": True, "mig-devices": {"7g.40gb": 1}},
    ]


@pytest.mark.parametrize(
    "document",
    [
        {"mig-configs": {"c": [{"devices": "all", "mig-enabled": False}]}},
        {"version": "v1", "mig-configs": {"c": [{"devices": "some", "mig-enabled": False}]}},
        {"version": "v1", "mig-configs": {"c": [{"devices": [0], "mig-enabled": True}]}},
        {"version": "v1", "mig-configs": {"c": [{"devices": [0], "mig-enabled": False, "mig-devices": {"1g.5gb": 1}}]}},
        {"version": "v1", "mig-configs": {"c": [{"devices": [0], "mig-enabled": True, "mig-devices": {"1g": 1}}]}},
        {"version": "v1", "mig-configs": {"c": [{"device": [0], "devices": [0], "mig-enabled": False}]}},
        {"version": "v1", "mig-configs": {"c": []}},
    ],
)
def test_the_schema_refuses_what_nvidia_mig_parted_refuses(document: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, MIG_PARTED)


def test_gpus_by_uuid_have_no_numbers(run: Run, tmp_path: Path) -> None:
    layout = deepcopy(LAYOUT)
    for each in layout["workers"]:
        each["device"]["id"] = f"GPU-0000000{each['device']['id']}-2222-3333-4444-555555555555"
    result = run(layout, "--deploy-target", "triton")
    assert result.exit_code == 0, result.stderr
    assert "notice: node 'a': its GPUs have UUIDs in the layout, and nvidia-mig-parted knows numbers" in result.stderr
    assert not (tmp_path / "out" / "mig").exists()


def test_configurations_are_tritons_and_inside_the_slice_is_gpu_0(out: Path) -> None:
    configs = list((out / "workers").glob("*/*/config.pbtxt"))
    assert len(configs) == len(LAYOUT["workers"]) + 1
    for path in configs:
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        assert (config.name, config.platform, config.max_batch_size) == (path.parent.name, "tensorrt_plan", 4)
        (group,) = config.instance_group
        assert (list(group.gpus), group.kind) == ([0], model_config_pb2.ModelInstanceGroup.KIND_GPU)


def test_every_kind_has_engines_which_its_workers_share(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = {str(path.relative_to(out)) for path in (out / "engines").glob("*/*.json")}
    assert engines == {"engines/big/m.a.json", "engines/big/m.b.json", "engines/small/m.b.json"}
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorrt())
    assert build_engine.main([str(out / engine) for engine in sorted(engines)]) == 0
    assert capsys.readouterr().out.count("was built for fp16") == 3
    for plan in (out / "workers").glob("*/*/1/model.plan"):
        kind = "big" if plan.parents[2].name in {"four", "whole", "seven"} else "small"
        assert plan.resolve() == out / "engines" / kind / f"{plan.parents[1].name}.plan"
        assert plan.is_file()


@pytest.mark.parametrize(
    ("deploy_target", "backend"),
    [("tensorrt", "tensorrt"), ("triton-tensorrt", "onnxruntime"), ("triton", "onnxruntime")],
)
def test_triton_has_nothing_against_partitions_but_that_it_lacks_the_backend(
    run: Run, tmp_path: Path, start_triton: Callable[..., Any], deploy_target: str, backend: str
) -> None:
    assert run(LAYOUT, "--deploy-target", deploy_target).exit_code == 0
    server = start_triton(
        [tmp_path / "out" / "workers" / "four"], options=["--strict-readiness=false", "--exit-on-error=false"]
    )
    said = re.findall(r"failed to load '(m\.\w)' version 1: (.*)", server.log_text)
    assert {name for name, _ in said} == {"m.a", "m.b"}, server.log_text
    assert all(f"unable to find backend library for backend '{backend}'" in reason for _, reason in said)


def test_engines_that_would_be_built_from_the_same_are_kept(run: Run, out: Path) -> None:
    plans = [out / "engines" / name for name in ("big/m.a.plan", "big/m.b.plan", "small/m.b.plan")]
    for plan in plans:
        plan.write_text(f"of {plan.parent.name}")
    assert run(LAYOUT, "--deploy-target", "tensorrt", "--precision", "fp16", "--force").exit_code == 0
    assert [plan.read_text() for plan in plans] == ["of big", "of big", "of small"]
    (weights,) = (out / "weights").glob("m.0-2.onnx")
    weights.write_bytes(weights.read_bytes() + b" ")
    assert run(LAYOUT, "--deploy-target", "tensorrt", "--precision", "fp16", "--force").exit_code == 0
    assert [plan.is_file() for plan in plans] == [False, True, True], "the model was another one"
    assert run(LAYOUT, "--deploy-target", "tensorrt", "--force").exit_code == 0
    assert not any(plan.is_file() for plan in plans), "of another precision"


def scripts(out: Path) -> list[Path]:
    return [*(out / "workers").glob("*.sh"), *(out / "mps").glob("*.sh")]


def test_scripts_are_scripts(out: Path) -> None:
    found = scripts(out)
    assert len(found) == 2 * len(LAYOUT["workers"]) + 2
    for script in found:
        assert os.access(script, os.X_OK)
        subprocess.run(["/bin/bash" if "bash" in script.read_text()[:16] else "/bin/sh", "-n", script], check=True)


def test_a_worker_does_not_start_before_its_engines_are_built(out: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "TIDEGATE_DEVICE": "visible"}
    done = subprocess.run(
        [out / "workers" / "four.sh"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "engines/big/m.a.plan is not built: run workers/four.build.sh on this device first" in done.stderr


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Stand-ins for nvidia-cuda-mps-control, tritonserver and tidegate, which write down how they are called."""
    folder = tmp_path / "tools"
    folder.mkdir()
    said = f'echo "$(basename "$0") $* on $CUDA_VISIBLE_DEVICES at $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls'
    # The socket stays when the daemon is killed, which is when nobody says `alive`.
    control = f"""cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$*" = -d ]; then
  [ ! -e alive ] || exit 1
  {said}
  touch control alive
  exit
fi
[ -e alive ] || exit 1
read -r asked
[ "$asked" != quit ] || {{ rm alive control; echo "quit at $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls; }}"""
    server = f"{said}\nwhile [ ! -e {tmp_path}/die ]; do sleep 0.05; done"
    for name, body in (
        ("nvidia-cuda-mps-control", control),
        ("tritonserver", server),
        ("tidegate", "echo MIG-$4"),
        ("nvidia-smi", "echo GPU-$2"),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def environment(tools: Path, tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{tools}:/usr/bin:/bin", "TIDEGATE_MPS": str(tmp_path / "pipes")}


def test_one_control_daemon_for_each_device_or_instance_that_is_shared(
    out: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    assert {path.name for path in (out / "mps").iterdir()} == {"gpu-0-3g.20gb-4.sh", "gpu-2.sh"}
    for script in ("gpu-2.sh", "gpu-0-3g.20gb-4.sh"):
        for verb in ("start", "start", "stop", "stop"):  # the second time there is nothing to do
            subprocess.run([out / "mps" / script, verb], env=environment, check=True, timeout=60)
    pipes = tmp_path / "pipes"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"nvidia-cuda-mps-control -d on GPU-2 at {pipes}/gpu-2",
        f"quit at {pipes}/gpu-2",
        f"nvidia-cuda-mps-control -d on MIG-share/0 at {pipes}/gpu-0-3g.20gb-4",
        f"quit at {pipes}/gpu-0-3g.20gb-4",
    ]
    wrong = subprocess.run([out / "mps" / "gpu-2.sh"], env=environment, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "error: mps/gpu-2.sh start | stop | run\n")


@pytest.mark.parametrize("told", [False, True], ids=["one ends", "it is told to end"])
def test_all_who_share_run_and_end_together(out: Path, environment: dict[str, str], tmp_path: Path, told: bool) -> None:
    (out / "engines" / "small" / "m.b.plan").touch()
    command = [str(out / "mps" / "gpu-2.sh"), "run"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 60
        calls = tmp_path / "calls"
        while calls.read_text().count("tritonserver") < 2 if calls.exists() else True:
            assert time.monotonic() < deadline, "the workers did not start"
            assert running.poll() is None
            time.sleep(0.01)
        if told:
            running.terminate()
        else:
            (tmp_path / "die").touch()
        _, errors = running.communicate(timeout=60)
    assert running.returncode == (143 if told else 1)
    assert ("one of the workers ended" in errors) != told
    lines = calls.read_text().splitlines()
    started = sorted(re.sub(r" .*model-repository=\S*/(\S+) .* on ", r" \1 on ", line) for line in lines[1:3])
    pipes = tmp_path / "pipes"
    assert started == [f"tritonserver {name} on GPU-2 at {pipes}/gpu-2" for name in ("rest", "third")]
    assert lines[-1] == f"quit at {pipes}/gpu-2"


def test_a_worker_does_not_start_with_a_daemon_that_was_killed(
    out: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """Its socket is there, and CUDA would silently give the worker all of the GPU."""
    (out / "engines" / "small" / "m.b.plan").touch()
    daemon = [str(out / "mps" / "gpu-2.sh"), "start"]
    subprocess.run(daemon, env=environment, check=True, timeout=60)
    (tmp_path / "pipes" / "gpu-2" / "alive").unlink()
    worker = [str(out / "workers" / "third.sh")]
    refused = subprocess.run(worker, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (refused.returncode, "mps/gpu-2.sh start" in refused.stderr) == (1, True)
    subprocess.run(daemon, env=environment, check=True, timeout=60)
    (tmp_path / "die").touch()
    subprocess.run(worker, env=environment, check=True, timeout=60)


def test_the_other_deploy_targets_have_the_same_nodes(run: Run, tmp_path: Path) -> None:
    assert run(LAYOUT, "--deploy-target", "triton-tensorrt").exit_code == 0
    out = tmp_path / "out"
    config = text_format.Parse(
        (out / "workers" / "four" / "m.a" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
    )
    assert config.optimization.execution_accelerators.gpu_execution_accelerator[0].name == "tensorrt"
    assert [(sample.name, sample.batch_size) for sample in config.model_warmup] == [("smallest", 1), ("largest", 4)]
    assert 'cd "$here/../engines/four"' in (out / "workers" / "four.sh").read_text()
    assert not list((out / "workers").glob("*.build.sh"))
    assert run(LAYOUT, "--force").exit_code == 0
    assert {path.name for path in out.iterdir()} == {
        "workers",
        "weights",
        "deployment.json",
        "layout.json",
        "tidegate.yaml",
    }


def test_tensorrt_alone_has_a_precision(run: Run, tmp_path: Path) -> None:
    result = run(LAYOUT, "--deploy-target", "triton", "--precision", "fp16")
    assert result.exit_code == 1
    assert "--deploy-target triton has no TensorRT" in result.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "measured.json").write_text(json.dumps({"profiles": []}))
    refused = run(LAYOUT, "--deploy-target", "tensorrt", "--profiles", tmp_path / "measured.json")
    assert "nothing was measured of 'm'; measured models: none" in refused.stderr
