"""Emulated GPUs that a controller moves: real Tritons slow each other down where they are, as the fitted model says."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import yaml

from tests.conftest import wait_until
from tests.proxy.app.actuation.deployment import Told
from tests.proxy.app.actuation.live import Live
from tidegate.schemas import PROXY_FILE, Layout, LayoutWorker, Mps
from tidegate.workload import PolicyChoice, Scenario, layout_of
from tidegate_loadtest.emulated_layout import write_emulated_deployment

ALONE_MS = 200.0
"""Long enough that what a busy machine adds to a stage is a small part of it."""
APART: dict[str, Any] = {
    "duration_s": 1,
    "workers": [
        {"count": 1, "gpu": "V100", "device": device, "percent": 50, "hosts": [name]}
        for device, name in enumerate("ab")
    ],
    "models": [
        {"name": name, "slo_ms": 10_000, "profile": {"alpha_ms": 0, "beta_ms": ALONE_MS, "max_batch": 1}}
        for name in "ab"
    ],
    "arrivals": {"rate_rps": 1},
    "simulation": {
        "interference": {
            "gpu": "V100",
            "models": {
                name: {
                    "gpu_ms": {"rows": [1], "percents": [25, 50], "taken_ms": [[ALONE_MS, ALONE_MS]]},
                    "cache_percent": {"base": 50},
                    "sensitivity": {"cache": 0.01, "neighbour": 0.5},
                }
                for name in "ab"
            },
        },
    },
}
"""Each alone on a GPU; beside the other either takes twice as long, all of it being computing."""
BESIDE_MS = 2 * ALONE_MS


@contextmanager
def asked_without_end(address: str, model: str) -> Iterator[list[float]]:
    """Two clients, so that a stage is always waiting; the milliseconds of each answer, both clients' in one list."""
    over, taken_ms = threading.Event(), list[float]()

    def ask() -> None:
        tensor = triton_grpc.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 8), np.float32))
        with triton_grpc.InferenceServerClient(address) as client:
            while not over.is_set():
                began = time.monotonic()
                try:
                    client.infer(model, [tensor])
                except Exception:
                    return  # its Triton was killed
                taken_ms.append(1000 * (time.monotonic() - began))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield taken_ms
    finally:
        over.set()
        for thread in threads:
            thread.join()


def stage_ms(taken_ms: list[float]) -> float:
    """What a stage takes from now on: each answer waits for the stage of the other client, too."""
    before = len(taken_ms)
    wait_until(lambda: len(taken_ms) > before + 12, "answers")
    return median(taken_ms[before + 4 :]) / 2


def on_the_first(worker: LayoutWorker, percent: int, first: Layout) -> LayoutWorker:
    """A worker moved to the device of the first one, with another share."""
    device = first.workers[0].device
    return worker.model_copy(update={"name": f"beside-{percent}", "device": device, "slice": Mps(percent)})


@pytest.mark.slow
def test_who_was_moved_slows_its_neighbours_down(start_live: Callable[..., Live], tmp_path: Path) -> None:
    scenario = Scenario.model_validate(APART)
    folder = tmp_path / "emulated"
    write_emulated_deployment(folder, scenario, PolicyChoice(name="fifs"), 1, tmp_path / "events.jsonl")
    document = yaml.safe_load((folder / PROXY_FILE).read_text())
    del document["record"]
    (folder / PROXY_FILE).write_text(yaml.safe_dump(document))
    live = start_live(folder)
    first = layout_of(scenario)
    stays, moves = first.workers

    def address(name: str) -> str:
        return live.tritons.addresses[name].grpc

    with asked_without_end(address(stays.name), "a") as of_a:
        with asked_without_end(address(moves.name), "b"):
            assert 0.9 * ALONE_MS < stage_ms(of_a) < 1.3 * ALONE_MS, "another GPU's worker is no neighbour"
        Told.wants = first.model_copy(update={"workers": (stays, on_the_first(moves, 50, first))})
        live.wait_for("done")
        assert live.serving == ["beside-50", stays.name]
        with asked_without_end(address("beside-50"), "b") as of_b:
            # A neighbour idles for a moment between two stages, longer where the machine is busy.
            assert ALONE_MS + 0.7 * (BESIDE_MS - ALONE_MS) < stage_ms(of_a) < 1.3 * BESIDE_MS
            assert ALONE_MS + 0.7 * (BESIDE_MS - ALONE_MS) < stage_ms(of_b) < 1.3 * BESIDE_MS
            os.kill(live.pid("beside-50"), signal.SIGKILL)
            wait_until(lambda: not live.tritons.is_running("beside-50"), "its Triton to end")
            assert stage_ms(of_a) < 1.3 * ALONE_MS, "who was killed is no neighbour"
