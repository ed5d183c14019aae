"""From an ONNX file to a served split model: split, generate, up; clients get what the whole model answers."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import rapidocr_onnxruntime
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.conftest import eventually
from tidegate_proxy.tritons.shared_memory import REGION_PREFIX
from tidegate_repo_generator.splitting.split import split_model

pytestmark = pytest.mark.usefixtures("start_triton")  # skips where there is no tritonserver

MODEL = Path(rapidocr_onnxruntime.__file__).parent / "models" / "ch_PP-OCRv4_rec_infer.onnx"
SHAPE = (3, 48, 96)
SPANS = {"recognize.0-3": [0, 3], "recognize.3-7": [3, 7], "recognize.7-10": [7, 10]}
LAYOUT: dict[str, Any] = {
    "models": [{"name": "recognize", "slo_ms": 20_000, "pipelines": [{"partitions": [*SPANS], "batch": 4}]}],
    "partitions": [
        {"name": name, "model": "recognize", "blocks": span, "latency_ms": {"cpu": [10, 20, 30, 40]}}
        for name, span in SPANS.items()
    ],
    "workers": [
        *(
            {
                "name": f"frontend/{number}",
                "device": {"node": "here", "id": 0},
                "slice": {"type": "mps", "percent": 50},
                "device_class": "cpu",
                "hosts": ["recognize.0-3"],
            }
            for number in range(2)
        ),
        {"name": "middle", "device": {"node": "here", "id": 1, "product": "cpu"}, "hosts": ["recognize.3-7"]},
        {"name": "back", "device": {"node": "here", "id": 2, "product": "cpu"}, "hosts": ["recognize.7-10"]},
    ],
}
Array = "np.ndarray[Any, Any]"


def tidegate(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split") / "blocks"
    split_model(MODEL, folder, blocks=10, shapes={"x": SHAPE})
    return folder


def deploy(blocks: Path, folder: Path) -> Path:
    (folder / "layout.json").write_text(json.dumps(LAYOUT))
    options = ["--blocks", f"recognize={blocks}", "--policy", "fifs", "-o", folder / "deployment"]
    made = tidegate("generate", folder / "layout.json", *options)
    assert made.returncode == 0, made.stderr
    return folder / "deployment"


@pytest.fixture(scope="module", params=["shared", pytest.param("sent", marks=pytest.mark.slow)])
def deployment(request: pytest.FixtureRequest, blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What `tidegate up --json` says, with tensors in shared memory or without."""
    folder = deploy(blocks, tmp_path_factory.mktemp(request.param))
    if request.param == "sent":
        with (folder / "tidegate.yaml").open("a") as config:
            config.write("limits: {max_shared_bytes: 0}\n")
    started = tidegate("up", folder, "--free-ports", "--json")
    try:
        assert started.returncode == 0, started.stderr
        yield {**json.loads(started.stdout), "folder": folder, "shared": request.param == "shared"}
    finally:
        tidegate("down", folder)


@pytest.fixture(scope="module")
def whole() -> Callable[[Any], Any]:
    """The unsplit model."""
    session = ort.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    return lambda pixels: session.run(None, {"x": pixels})[0]


def pictures(rows: int, seed: int) -> Any:
    return np.random.default_rng(seed).random((rows, *SHAPE), np.float32)


def ask(client: Any, kind: Any, pixels: Any) -> Any:
    tensor = kind.InferInput("x", list(pixels.shape), "FP32")
    tensor.set_data_from_numpy(pixels)
    return client.infer("recognize", [tensor]).as_numpy("softmax_11.tmp_0")


def test_over_grpc_many_clients_get_the_answers_of_the_whole_model(
    deployment: Any, whole: Callable[[Any], Any]
) -> None:
    batches = [pictures(1 + seed % 3, seed) for seed in range(10)]
    with triton_grpc.InferenceServerClient(deployment["grpc"]) as client, ThreadPoolExecutor(8) as pool:
        assert [model.name for model in client.get_model_repository_index().models] == ["recognize"]
        for pixels, answer in zip(
            batches, pool.map(lambda pixels: ask(client, triton_grpc, pixels), batches), strict=True
        ):
            np.testing.assert_allclose(answer, whole(pixels), atol=1e-5)
    worker = next(worker for worker in deployment["workers"] if worker["name"] == "middle")
    with triton_grpc.InferenceServerClient(worker["grpc"]) as client:
        regions = client.get_system_shared_memory_status().regions
        assert any(name.startswith(REGION_PREFIX) for name in regions) == deployment["shared"]


def test_over_http_too(deployment: Any, whole: Callable[[Any], Any]) -> None:
    with triton_http.InferenceServerClient(deployment["http"]) as client:
        pixels = pictures(2, 99)
        np.testing.assert_allclose(ask(client, triton_http, pixels), whole(pixels), atol=1e-5)


def test_a_pool_that_loses_a_worker_goes_on_and_down_tells(deployment: Any, whole: Callable[[Any], Any]) -> None:
    """The last test of a deployment. Whether the worker was started again by then is a matter of time."""
    pids = {worker["name"]: worker["pid"] for worker in deployment["workers"]}
    with triton_grpc.InferenceServerClient(deployment["grpc"]) as client, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, client, triton_grpc, pictures(1, seed)) for seed in range(24)]
        asked[4].result()
        os.kill(pids["frontend/0"], signal.SIGKILL)
        for seed, answer in enumerate(asked):
            np.testing.assert_allclose(answer.result(), whole(pictures(1, seed)), atol=1e-5)
    stopped = tidegate("down", deployment["folder"])
    assert stopped.returncode == 0, stopped.stderr
    assert re.search(
        r"stopped the proxy \(process \d+\) and [34] workers: (frontend/0, )?frontend/1, middle, back", stopped.stdout
    )
    assert not any(runs(pid) for pid in [deployment["pid"], *pids.values()])
    again = tidegate("down", deployment["folder"])
    assert (again.returncode, "was up" in again.stdout) == (0, True)


@pytest.mark.slow
def test_a_worker_that_does_not_start_leaves_nothing_and_is_named(blocks: Path, tmp_path: Path) -> None:
    folder = deploy(blocks, tmp_path)
    weights = folder / "workers" / "middle" / "recognize.3-7" / "1" / "model.onnx"
    weights.unlink()
    weights.write_bytes(b"no model")
    failed = tidegate("up", folder, "--free-ports")
    assert failed.returncode == 1
    assert "error: worker 'middle' did not start: " in failed.stderr
    assert "onnxruntime cannot load" in failed.stderr
    assert f"the whole log: {folder / 'run' / 'middle.log'}" in failed.stderr
    assert not (folder / "run" / "state.json").exists()
    assert not processes_about(folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_user_who_interrupts_up_leaves_nothing_running(blocks: Path, tmp_path: Path, number: signal.Signals) -> None:
    folder = deploy(blocks, tmp_path)
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "up", str(folder), "--free-ports"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually((folder / "run" / "back.log").exists, "the Tritons to be started")
            process.send_signal(number)
            assert process.wait(120) != 0
        finally:
            process.kill()
    eventually(lambda: not processes_about(folder), "what it started to end")
    assert not (folder / "run" / "state.json").exists()


def processes_about(folder: Path) -> list[Path]:
    return [entry for entry in Path("/proc").glob("[0-9]*") if str(folder).encode() in command_line(entry)]


def runs(pid: int) -> bool:
    """Whether it does; what has ended may stay in the list until somebody asks for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(
    "CUDAExecutionProvider" not in ort.get_available_providers(),
    reason="needs an NVIDIA GPU and onnxruntime-gpu (onnxruntime has no CUDAExecutionProvider here)",
)
def test_on_a_gpu_that_its_workers_share(blocks: Path, tmp_path: Path, whole: Callable[[Any], Any]) -> None:
    """Four processes on one GPU stand for workers of several: CUDA's arithmetic, so to 1e-3."""
    folder = deploy(blocks, tmp_path)
    for config in folder.glob("workers/**/config.pbtxt"):
        with config.open("a") as text:
            text.write('parameters { key: "execution_provider" value { string_value: "CUDAExecutionProvider" } }\n')
    started = tidegate("up", folder, "--free-ports", "--json")
    try:
        assert started.returncode == 0, started.stderr
        with triton_grpc.InferenceServerClient(json.loads(started.stdout)["grpc"]) as client:
            pixels = pictures(2, 7)
            np.testing.assert_allclose(ask(client, triton_grpc, pixels), whole(pixels), atol=1e-3)
    finally:
        tidegate("down", folder)
