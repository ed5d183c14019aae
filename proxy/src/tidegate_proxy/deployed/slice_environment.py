"""Environment variables of CUDA and MPS that bind a worker's process to its part of a GPU."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Final

from tidegate.schemas import DeployedWorker, LayoutWorker, Mps
from tidegate_proxy.deployed.folder import DeploymentError

MPS_PIPE_VARIABLE: Final = "TIDEGATE_MPS"
"""Environment variable with the folder of the control daemons, as in the launch files of a deployment."""
_DEFAULT_PIPES: Final = "/tmp/tidegate-mps"  # noqa: S108 - names of sockets are limited, so it is a short one
_DRIVER: Final = Path("/dev/nvidiactl")
_ASK_S: Final = 10.0


def environment_of(worker: LayoutWorker | DeployedWorker) -> dict[str, str]:
    """Return the variables that limit a process to its MPS share; empty for a worker without a share.

    The share is fixed for the life of the process. Raises DeploymentError if there are GPUs but no MPS daemon answers
    for this one.
    """
    part = worker.slice
    if not isinstance(part, Mps):
        return {}
    pipes = Path(os.environ.get(MPS_PIPE_VARIABLE, _DEFAULT_PIPES)) / _domain(worker)
    variables = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(part.percent), "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    if part.memory_mib:
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={part.memory_mib}M"
    if isinstance(worker.device.id, str):
        variables["CUDA_VISIBLE_DEVICES"] = worker.device.id
    if _DRIVER.exists() and not _answers(variables):
        raise DeploymentError(
            f"worker {worker.name!r} has a share of GPU {worker.device.id}, and no MPS daemon answers at {pipes}: "
            f"start one there (nvidia-cuda-mps-control -d with CUDA_MPS_PIPE_DIRECTORY={pipes}, as this user), or say "
            f"with {MPS_PIPE_VARIABLE} where they are"
        )
    return variables


def _domain(worker: LayoutWorker | DeployedWorker) -> str:
    """The name of the daemon's folder, as the scripts of a deployment call it."""
    device, part = worker.device, worker.slice
    assert isinstance(part, Mps)
    number = device.id if isinstance(device.id, str) else f"gpu-{device.id}"
    place = f"-{part.instance.profile}-{part.instance.start}" if part.instance else ""
    return f"{number}{place}".replace("/", "-")


def _answers(variables: Mapping[str, str]) -> bool:
    control = which("nvidia-cuda-mps-control")
    if control is None:
        return False
    try:
        asked = subprocess.run(
            [control],
            input=b"get_default_active_thread_percentage\n",
            env={**os.environ, **variables},
            capture_output=True,
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
