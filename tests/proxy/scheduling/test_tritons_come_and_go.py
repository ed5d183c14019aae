"""A Triton that dies under load, and one that comes back."""

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tests.proxy.fixtures.clients import tensors
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models", "echo", "max_batch_size: 4", instances=2)
    add_model(tmp_path / "models", "flat", "max_batch_size: 0")
    return tmp_path / "models"


class Load:
    """Callers in threads, each with one request under way at a time; every answer is checked."""

    cooldown_s = 0.0
    """How long each waits before it asks again: not at all where a Triton is lost or comes back."""

    def __init__(self, address: str, callers: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._address = address
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(index,)) for index in range(callers)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, caller: int) -> None:
        with triton_grpc.InferenceServerClient(self._address) as client:
            number = caller * 1_000_000
            while not self._stop.is_set():
                number += 1
                try:
                    answer = client.infer("echo", tensors({"X": np.array([[number]], np.int32).view(np.float32)}))
                    right = answer.as_numpy("Y").view(np.int32).tolist() == [[number]]
                    outcome = "right" if right else "wrong"
                except InferenceServerException as error:
                    outcome = f"{error.status()}: {error.message()}"
                self.outcomes[outcome] += 1
                self._stop.wait(self.cooldown_s)


def _restart(start_triton: Make, repository: Path, dead: EmbeddedTriton, load: Load, **options: Any) -> EmbeddedTriton:
    """Start a Triton where the dead one was; from then on the callers leave the processors to it and to Tidegate."""
    port = int(dead.grpc_address.rpartition(":")[2])
    dead.stop()
    load.cooldown_s = 0.1
    restarted: EmbeddedTriton = start_triton([repository], grpc_port=port, **options)
    return restarted


def _executions(client: triton_grpc.InferenceServerClient) -> int:
    return int(client.get_inference_statistics("echo").model_stats[0].execution_count)


def test_another_takes_over_and_no_request_is_lost(
    repository: Path, start_triton: Make, start_tidegate: Make, connect: Make
) -> None:
    first, second = start_triton([repository]), start_triton([repository])
    tidegate = start_tidegate([first, second])
    with Load(tidegate.address, callers=12) as load:
        eventually(lambda: load.outcomes["right"] > 200, "requests to be answered")
        os.kill(first.pid, signal.SIGKILL)
        eventually(
            lambda: re.search(rf"triton lost: .*\(triton={first.grpc_address}", tidegate.log), "the loss to be noticed"
        )
        so_far = load.outcomes.total()
        eventually(lambda: load.outcomes.total() > so_far + 200, "the other Triton to answer")
        assert connect(tidegate).infer("flat", tensors({"X": np.ones(2, np.float32)})).as_numpy("Y").tolist() == [1, 1]
        back = connect(_restart(start_triton, repository, first, load))
        eventually(lambda: _executions(back) > 5, "the restarted Triton to be used again")
    assert set(load.outcomes) == {"right"}, load.outcomes
    tally = tidegate.stop()
    assert tally == {
        "accepted": load.outcomes.total(), "answered": load.outcomes.total(), "late": 0, "failed": 0, "cancelled": 0
    }  # fmt: skip


def test_with_the_only_triton_gone_clients_are_told(
    repository: Path, start_triton: Make, start_tidegate: Make, connect: Make
) -> None:
    triton = start_triton([repository])
    tidegate = start_tidegate([triton], policy="symphony")
    with Load(tidegate.address, callers=6) as load:
        eventually(lambda: load.outcomes["right"] > 50, "requests to be answered")
        os.kill(triton.pid, signal.SIGKILL)
        eventually(lambda: load.outcomes.total() > load.outcomes["right"] + 20, "clients to be told")
        _restart(start_triton, repository, triton, load)
        eventually(lambda: "triton back" in tidegate.log, "Tidegate to find it again")
        load.cooldown_s = 0.0
        right = load.outcomes["right"]
        eventually(lambda: load.outcomes["right"] > right + 50, "requests to be answered again")
    told = {
        "StatusCode.UNAVAILABLE: no worker is left that hosts this model",
        *(f"StatusCode.UNAVAILABLE: worker {triton.grpc_address}/echo/{lane} was lost" for lane in range(2)),
    }
    assert set(load.outcomes) - {"right"} <= told
    tally = tidegate.stop()
    assert tally["answered"] == load.outcomes["right"]
    assert tally["accepted"] == load.outcomes.total() == tally["answered"] + tally["failed"]


def test_a_dead_triton_that_only_passes_calls_through_is_noticed(
    repository: Path, start_triton: Make, start_tidegate: Make, connect: Make
) -> None:
    first, second = start_triton([repository]), start_triton([repository])
    client = connect(start_tidegate([first, second]))
    os.kill(first.pid, signal.SIGKILL)

    def answered() -> bool:
        try:
            return bool(client.infer("flat", tensors({"X": np.ones(2, np.float32)})).as_numpy("Y").tolist() == [1, 1])
        except InferenceServerException as error:
            assert error.status() == "StatusCode.UNAVAILABLE"
            return False

    eventually(answered, "the other Triton to be asked")


def test_a_request_is_not_tried_again_on_the_triton_that_lost_it(
    gate: Any, start_triton: Make, start_tidegate: Make, start_call: Make, tmp_path: Path
) -> None:
    add_model(tmp_path, "gated", "max_batch_size: 4", instances=2, gate=gate.file)
    first, second = start_triton([tmp_path]), start_triton([tmp_path])
    tidegate = start_tidegate([first, second])
    running = start_call(tidegate, "ModelInfer", request_of("gated", {"X": np.ones((1, 2), np.float32)}))
    eventually(gate.somebody_waits, "the first Triton to run it")
    os.kill(first.pid, signal.SIGKILL)
    gate.open()
    assert outcome(running)[0] is grpc.StatusCode.OK
    assert tidegate.stop()["answered"] == 1


@pytest.mark.parametrize(
    ("rows", "grace_s"),
    [
        pytest.param((4, 8), 10.0, id="larger, asked to end", marks=pytest.mark.slow),
        pytest.param((8, 4), 0.0, id="smaller, killed"),
        pytest.param((4, 8), 0.0, id="larger, killed", marks=pytest.mark.slow),
        pytest.param((8, 4), 10.0, id="smaller, asked to end", marks=pytest.mark.slow),
    ],
)
def test_a_rolling_update_with_another_max_batch_size_loses_nothing(
    rows: tuple[int, int], grace_s: float, start_triton: Make, start_tidegate: Make, connect: Make, tmp_path: Path
) -> None:
    for name, max_rows in zip(("old", "new"), rows, strict=True):
        add_model(tmp_path / name, "echo", f"max_batch_size: {max_rows}", instances=2)
    tritons = [start_triton([tmp_path / "old"], grace_s=grace_s) for _ in range(2)]
    tidegate = start_tidegate(tritons)
    with Load(tidegate.address, callers=12) as load:
        eventually(lambda: load.outcomes["right"] > 100, "requests to be answered")
        for updated, triton in enumerate(tritons, 1):
            _restart(start_triton, tmp_path / "new", triton, load, grace_s=grace_s)
            eventually(lambda seen=updated: tidegate.log.count("triton back") == seen, "it to be taken back")
            load.cooldown_s = 0.0
            so_far = load.outcomes.total()
            eventually(lambda seen=so_far: load.outcomes.total() > seen + 100, "requests to be answered")
    assert set(load.outcomes) == {"right"}, load.outcomes
    assert "tritons agree again" in tidegate.log
    eight = np.zeros((rows[1], 2), np.float32)
    assert connect(tidegate).infer("echo", tensors({"X": eight})).as_numpy("Y").shape == eight.shape
    tally = tidegate.stop()
    assert tally["answered"] == tally["accepted"] == load.outcomes.total() + 1
