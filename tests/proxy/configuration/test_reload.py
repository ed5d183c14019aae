"""What changes while the proxy runs: its configuration, and what its Tritons serve. No request is lost over it."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from tritonclient.grpc import service_pb2 as messages

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK = grpc.StatusCode.OK


@pytest.fixture
def configured(start_tidegate: Make, tmp_path: Path) -> Make:
    """`configured(triton, **fields)`: a Tidegate with a configuration file, and what changes that file."""

    def start(*tritons: EmbeddedTriton, **fields: Any) -> tuple[Any, Make]:
        path = tmp_path / "tidegate.yaml"

        def write(*tritons: EmbeddedTriton, **fields: Any) -> None:
            document = {"tritons": [triton.grpc_address for triton in tritons], "drain_timeout_s": 1, **fields}
            path.write_text(yaml.safe_dump(document))

        write(*tritons, **fields)
        tidegate = start_tidegate([], config=path)

        def change(*tritons: EmbeddedTriton, **fields: Any) -> None:
            write(*tritons, **fields)
            os.kill(tidegate.pid, signal.SIGHUP)

        return tidegate, change

    return start


class Load:
    """Sends one request after the other until told to stop; how they ended."""

    def __init__(self, call: Make, server: object) -> None:
        self.outcomes: list[tuple[grpc.StatusCode, Any]] = []
        self._stop = threading.Event()

        def run() -> None:
            while not self._stop.wait(0.01):
                self.outcomes.append(call(server, "ModelInfer", request_of("echo", {"X": ROW})))

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def stop(self) -> list[tuple[grpc.StatusCode, Any]]:
        """All outcomes that were not good."""
        self._stop.set()
        self._thread.join()
        assert self.outcomes
        return [outcome for outcome in self.outcomes if outcome[0] is not OK]


def test_tritons_come_and_go_under_load(configured: Make, start_triton: Make, call: Make, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    add_model(repository, "echo", "max_batch_size: 4")
    first, second = start_triton([repository]), start_triton([repository])
    tidegate, change = configured(first)
    load = Load(call, tidegate)

    def executions(triton: EmbeddedTriton) -> int:
        _, answer = call(triton, "ModelStatistics", messages.ModelStatisticsRequest(name="echo"))
        return int(messages.ModelStatisticsResponse.FromString(answer).model_stats[0].execution_count)

    change(first, second)
    eventually(lambda: tidegate.log.count("configuration applied (changed=tritons") == 1, "the second Triton")
    change(second)
    eventually(lambda: executions(second) > 5, "the second Triton to be used")
    eventually(lambda: tidegate.log.count("configuration applied (changed=tritons") == 2, "the first to be left out")
    before = executions(first)
    eventually(lambda: executions(second) > 20, "the second Triton to be used alone")
    assert executions(first) == before
    assert load.stop() == []


def test_a_broken_file_changes_nothing(configured: Make, triton: EmbeddedTriton, call: Make) -> None:
    tidegate, change = configured(triton)
    change(triton, nonsense=1)
    eventually(lambda: "configuration not applied" in tidegate.log, "the complaint")
    assert "nonsense: there is no such field" in tidegate.log
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK


def test_an_slo_changes(configured: Make, gate: Any, triton: EmbeddedTriton, start_call: Make) -> None:
    tidegate, change = configured(triton, policy="symphony")
    change(triton, policy="symphony", models={"gated": {"slo_ms": 200}})
    eventually(lambda: "configuration applied (changed=models" in tidegate.log, "the SLO")
    running = start_call(tidegate, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(gate.somebody_waits, "the model to run")
    waiting = start_call(tidegate, "ModelInfer", request_of("gated", {"X": ROW}))
    assert outcome(waiting) == (grpc.StatusCode.UNAVAILABLE, "Request timeout expired")  # it had no SLO before
    gate.open()
    assert outcome(running)[0] is OK


def test_the_policy_changes_under_load(configured: Make, triton: EmbeddedTriton, call: Make) -> None:
    tidegate, change = configured(triton)
    loads = [Load(call, tidegate) for _ in range(3)]
    for number, policy in enumerate(("fifs", {"name": "timeout", "options": {"timeout_ms": 1}}, "symphony"), 1):
        change(triton, policy=policy)
        eventually(lambda n=number: tidegate.log.count("configuration applied (changed=policy") == n, "it to decide")
        served = len(loads[0].outcomes)
        eventually(lambda n=served: len(loads[0].outcomes) > n + 3, "requests to be answered")
    change(triton, policy={"name": "timeout", "options": {"timeout_ms": -1}})
    eventually(lambda: "configuration not applied" in tidegate.log, "the complaint")
    assert "timeout_ms" in tidegate.log
    assert [load.stop() for load in loads] == [[], [], []]


def test_a_model_that_is_loaded_is_scheduled_and_one_that_is_unloaded_is_gone(
    start_triton: Make, start_tidegate: Make, call: Make, tmp_path: Path
) -> None:
    for name in ("echo", "other"):
        add_model(tmp_path, name, "max_batch_size: 4")
    triton = start_triton([tmp_path], options=["--model-control-mode=explicit", "--load-model=echo"])
    tidegate = start_tidegate([triton])
    other = request_of("other", {"X": ROW})
    assert call(tidegate, "ModelInfer", other)[0] is not OK
    load = messages.RepositoryModelLoadRequest(model_name="other")
    assert call(tidegate, "RepositoryModelLoad", load)[0] is OK
    assert call(tidegate, "ModelInfer", other)[0] is OK
    unload = messages.RepositoryModelUnloadRequest(model_name="other")
    assert call(tidegate, "RepositoryModelUnload", unload)[0] is OK
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    assert tidegate.stop()["accepted"] == 2  # one of each was scheduled
