"""What the process of a worker is told of its share."""

from pathlib import Path

import pytest

from tests.proxy.app.actuation.deployment import layout
from tidegate.schemas import Device, Mig, Mps
from tidegate_proxy.deployed import tritons
from tidegate_proxy.deployed.folder import DeploymentError
from tidegate_proxy.deployed.tritons import environment_of

SHARE = layout(3, percent=40).workers[0]


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tritons, "_DRIVER", tmp_path / "nvidiactl")
    monkeypatch.setenv("TIDEGATE_MPS", "/run/mps")


def test_who_has_a_whole_gpu_is_told_nothing() -> None:
    assert environment_of(layout(3).workers[0]) == {}


def test_a_share_is_limited_by_variables() -> None:
    assert environment_of(SHARE) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/gpu-3",
    }
    instance = SHARE.model_copy(
        update={
            "device": Device("here", "MIG-1", "any"),
            "slice": Mps(percent=30, memory_mib=500, instance=Mig("1g.5gb", 2)),
        }
    )
    assert environment_of(instance) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/MIG-1-1g.5gb-2",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=500M",
        "CUDA_VISIBLE_DEVICES": "MIG-1",
    }


def test_without_a_daemon_there_are_no_shares_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeploymentError, match=r"no MPS daemon answers at /run/mps/gpu-3: start one there"):
        environment_of(SHARE)
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\nexit 1\n")
    control.chmod(0o755)
    with pytest.raises(DeploymentError, match="no MPS daemon answers"):
        environment_of(SHARE)
    control.write_text("#!/bin/sh\nexit 0\n")
    assert environment_of(SHARE)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
