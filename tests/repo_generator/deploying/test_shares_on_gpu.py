"""MPS shares for real, where a GPU and MPS are: the generated scripts, and a CUDA program in the place of tritonserver.

It starts a control daemon of its own, which it ends; no setting of the GPU is changed. It needs pytest, msgspec,
pluggy, pydantic, nvidia-ml-py and NVIDIA's driver, nothing else of this repository but `core` and `repo_generator`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.schemas import Device, LayoutWorker, Mps
from tidegate_repo_generator.deploying.launch import launch_file
from tidegate_repo_generator.deploying.mps import daemon_file, domain_of
from tidegate_repo_generator.deploying.places import WorkerPlacement
from tidegate_repo_generator.deploying.slices import share_of
from tidegate_repo_generator.model import DeployTarget

MIB = 1 << 20
CLIENT = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")

def do(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"

count, device, units, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
do("cuInit", 0)
do("cuDeviceGetCount", ctypes.byref(count))
do("cuDeviceGet", ctypes.byref(device), 0)
do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
do("cuCtxSetCurrent", context)
do("cuDeviceGetAttribute", ctypes.byref(units), 16, device)

def refused(mib):
    memory = ctypes.c_void_p()
    code = cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20))
    if code == 0:
        do("cuMemFree_v2", memory)
    return code

said = {"devices": count.value, "units": units.value, "256": refused(256), "3072": refused(3072)}
sys.stdout.write(json.dumps(said))
"""
"""What CUDA says of the device that it has: multiprocessors, and whether so many MiB can be had (2: out of memory)."""


def _why_not() -> str | None:
    """Why there are no shares here; None: there are."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # there is no module, no library, no driver, no GPU
        return f"needs an NVIDIA GPU: {error}"
    divided = [0]
    try:
        divided = pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        pass
    finally:
        pynvml.nvmlShutdown()
    if divided[0]:
        return "needs a GPU that is not cut by MIG"
    return None if shutil.which("nvidia-cuda-mps-control") else "needs NVIDIA MPS: there is no nvidia-cuda-mps-control"


WHY_NOT = _why_not()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

GPU = Device("here", 0)
QUARTER = LayoutWorker(name="quarter", device=GPU, slice=Mps(25, memory_mib=1024), hosts=("m",))
THIRD = LayoutWorker(name="third", device=GPU, slice=Mps(37), hosts=("m",))


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A daemon runs, and `tritonserver` is the CUDA program; the scripts are where a deployment has them."""
    (tmp_path / "client.py").write_text(CLIENT)
    for folder in ("tools", "workers", "mps"):
        (tmp_path / folder).mkdir()
    domain = domain_of(QUARTER)
    assert domain is not None
    daemon = tmp_path / domain.script
    scripts = {
        tmp_path / "tools" / "tritonserver": f"#!/bin/sh\nexec {sys.executable} {tmp_path}/client.py\n",
        daemon: daemon_file(domain, [QUARTER, THIRD], [], share_of(QUARTER)),
    }
    for worker in (QUARTER, THIRD):
        place = WorkerPlacement(worker.name, "127.0.0.1", 9000)
        scripts[tmp_path / "workers" / f"{worker.name}.sh"] = launch_file(worker, place, DeployTarget.TRITON)
    for script, text in scripts.items():
        script.write_text(text)
        script.chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="mps-") as pipes:  # the names of sockets are limited
        variables = {**os.environ, "PATH": f"{tmp_path}/tools:{os.environ['PATH']}", "TIDEGATE_MPS": pipes}
        subprocess.run([daemon, "start"], env=variables, check=True, timeout=60)
        try:
            yield variables
        finally:
            subprocess.run([daemon, "stop"], env=variables, check=False, timeout=60)


def said_by(command: list[str], environment: dict[str, str]) -> Any:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_worker_has_its_share_and_no_more(environment: dict[str, str], tmp_path: Path) -> None:
    whole = said_by([sys.executable, str(tmp_path / "client.py")], dict(os.environ))
    quarter, third = (said_by([str(tmp_path / "workers" / f"{name}.sh")], environment) for name in ("quarter", "third"))
    assert (quarter["devices"], third["devices"]) == (1, 1)
    assert 0 < quarter["units"] <= whole["units"] * 25 / 100
    assert quarter["units"] < third["units"] <= whole["units"] * 37 / 100
    assert (quarter["256"], quarter["3072"]) == (0, 2), "1024 MiB are its own"
    assert (third["256"], third["3072"]) == (0, 0)


def test_without_its_daemon_no_worker_starts(environment: dict[str, str], tmp_path: Path) -> None:
    elsewhere = environment | {"TIDEGATE_MPS": str(tmp_path / "elsewhere")}
    done = subprocess.run(
        [tmp_path / "workers" / "third.sh"], env=elsewhere, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "MPS does not run there" in done.stderr
