"""`tidegate serve` with frontends: what dies is started again, and nobody waits for an answer that will not come."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import Tidegate, eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tidegate_proxy.frontends.shard_connection import SCHEDULER_UNAVAILABLE, SHARD_LOST
from tidegate_proxy.frontends.supervisor import FRONTEND, SHARD
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.array([[1.0, 2.0]], np.float32)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
INFERENCE = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})


def children(tidegate: Tidegate) -> list[int]:
    """Give the shard, then the frontends."""
    return [*tidegate.children(SHARD), *tidegate.children(FRONTEND)]


@pytest.fixture
def tidegate(triton: EmbeddedTriton, start_tidegate: Make) -> Tidegate:
    """One with two frontends."""
    address = f"{triton.grpc_address},http={triton.http_address},metrics={triton.metrics_address}"
    served: Tidegate = start_tidegate(
        [], triton=address, frontends=2, listen_http="127.0.0.1:0", listen_metrics="127.0.0.1:0"
    )
    return served


def _address(tidegate: Tidegate, service: str) -> str:
    found = re.search(rf"{service} +(\S+)\n", tidegate.output)
    assert found, tidegate.output
    return found[1]


def test_it_ends_as_one(tidegate: Tidegate, call: Make) -> None:
    pids = children(tidegate)
    assert len(pids) == 3
    for _ in range(5):
        assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    assert tidegate.stop()["answered"] == 5
    for pid in pids:
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "its processes to end")


SLOW_TO_START = """
import time
from tidegate_proxy.frontends.supervisor import supervise

def start(_socket):
    print("starting", flush=True)
    time.sleep(600)

raise SystemExit(supervise([start], lambda _folder, _sockets: time.sleep(600), 1))
"""


def test_it_ends_well_while_a_shard_starts() -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_START], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        process.terminate()
        assert process.wait(60) == 0


def test_a_frontend_that_dies_loses_its_own_connections_alone(tidegate: Tidegate, call: Make) -> None:
    shard, first, second = children(tidegate)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: "frontend" in tidegate.log and "SIGKILL" in tidegate.log, "its end to be told")
    eventually(lambda: len(children(tidegate)) == 3, "another one")
    assert {shard, second} < set(children(tidegate))

    def all_answer() -> bool:
        return {call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] for _ in range(8)} == {OK}

    eventually(all_answer, "clients to be connected again")


def test_a_shard_that_dies_fails_what_is_under_way_at_once(
    tidegate: Tidegate, gate: Any, start_call: Make, call: Make
) -> None:
    frontends = children(tidegate)[1:]
    over_http = http.client.HTTPConnection(_address(tidegate, "HTTP"), timeout=60)
    over_http.request("POST", "/v2/models/gated/infer", INFERENCE)
    eventually(gate.somebody_waits, "the model to run")
    waiting = start_call(tidegate, "ModelInfer", request_of("gated", {"X": ROW}))
    assert call(tidegate, "ServerLive", b"")[0] is OK  # behind it on one connection
    os.kill(children(tidegate)[0], signal.SIGKILL)
    assert outcome(waiting) == (UNAVAILABLE, SHARD_LOST)
    answer = over_http.getresponse()
    assert (answer.status, json.loads(answer.read())) == (503, {"error": SHARD_LOST})
    said = set()

    def is_served_again() -> bool:
        code, details = call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))
        said.add(details if code is not OK else "")
        return bool(code is OK)

    eventually(is_served_again, "another shard")
    assert said <= {"", SCHEDULER_UNAVAILABLE, SHARD_LOST}

    def is_served_over_http() -> bool:
        """The other frontend may hear of the shard a moment later."""
        over_http.request("POST", "/v2/models/echo/infer", INFERENCE)
        answer = over_http.getresponse()
        answer.read()
        return answer.status == 200

    eventually(is_served_over_http, "the same over HTTP")
    over_http.close()
    assert set(frontends) < set(children(tidegate)), "the frontends are the same ones"


def test_metrics_count_the_connections_of_all_frontends(tidegate: Tidegate, call: Make) -> None:
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK

    def connections() -> float:
        with urllib.request.urlopen(f"http://{_address(tidegate, 'metrics')}", timeout=60) as page:
            found = re.search(r'tidegate_connections\{protocol="grpc"\} (\S+)', page.read().decode())
        return float(found[1]) if found else 0.0

    eventually(lambda: connections() >= 1, "the connection to be counted")


def test_a_shard_that_cannot_serve_ends_it(start_tidegate: Make) -> None:
    with pytest.raises(AssertionError, match="no Triton is ready"):
        start_tidegate([], triton="127.0.0.1:1", frontends=2, startup_timeout_s=0.1)
