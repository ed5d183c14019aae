"""Launch files share memory with clients where the operator wants it and this release of Triton knows the flag."""

import subprocess
from pathlib import Path

import pytest

from tidegate.schemas import Device, LayoutWorker, WholeDevice
from tidegate_repo_generator.deploying.launch import launch_file
from tidegate_repo_generator.deploying.places import places_of
from tidegate_repo_generator.model import DeployTarget

FLAG = "--allow-client-shm=true"


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({"NVIDIA_TRITON_SERVER_VERSION": "26.05"}, False),
        ({"NVIDIA_TRITON_SERVER_VERSION": "26.05", "TIDEGATE_ALLOW_CLIENT_SHM": "false"}, False),
        ({"NVIDIA_TRITON_SERVER_VERSION": "26.05", "TIDEGATE_ALLOW_CLIENT_SHM": "true"}, True),
        ({"NVIDIA_TRITON_SERVER_VERSION": "26.04", "TIDEGATE_ALLOW_CLIENT_SHM": "true"}, True),
        ({"NVIDIA_TRITON_SERVER_VERSION": "27.01.1", "TIDEGATE_ALLOW_CLIENT_SHM": "true"}, True),
        ({"NVIDIA_TRITON_SERVER_VERSION": "26.03", "TIDEGATE_ALLOW_CLIENT_SHM": "true"}, False),
        ({"NVIDIA_TRITON_SERVER_VERSION": "24.10", "TIDEGATE_ALLOW_CLIENT_SHM": "true"}, False),
        ({"TIDEGATE_ALLOW_CLIENT_SHM": "true"}, False),
    ],
)
def test_the_flag_is_given_to_releases_that_know_it(environment: dict[str, str], given: bool, tmp_path: Path) -> None:
    worker = LayoutWorker(name="w", device=Device("n", 0, "gpu"), slice=WholeDevice(), device_class="gpu", hosts=("m",))
    (tmp_path / "tools").mkdir()
    for tool, does in (("tritonserver", 'printf "%s\\n" "$@"'), ("nvidia-smi", "echo GPU-1")):
        (tmp_path / "tools" / tool).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "tools" / tool).chmod(0o755)
    script = tmp_path / "w.sh"
    script.write_text(launch_file(worker, places_of([worker], {}, 9000)["w"], DeployTarget.TRITON))
    path = {"PATH": f"{tmp_path}/tools:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", script, "--log-verbose=1"],
        env=path | environment,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    arguments = done.stdout.split()
    assert (FLAG in arguments) is given
    assert arguments[-1] == "--log-verbose=1"
