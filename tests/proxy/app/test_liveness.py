"""A policy that never returns, an engine that is not woken: no probe is told that all is well. A full disk."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
import yaml
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tidegate_baselines.fifs import Fifs

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
LIVE = service_pb2.ServerLiveResponse(live=True).SerializeToString()
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}).encode()


def _echo(request: Any, _context: Any = None) -> bytes:
    answer = service_pb2.ModelInferResponse(model_name="echo", model_version="1", id=request.id)
    answer.outputs.add(name="Y", datatype="FP32", shape=request.inputs[0].shape)
    answer.raw_output_contents.append(request.raw_input_contents[0])
    return bytes(answer.SerializeToString())


def _get(address: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    try:
        with urlopen(Request(f"http://{address}{path}", body), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def world(start_fake: Make, fake_http: str, serve_here: Make, request: pytest.FixtureRequest) -> Any:
    """A proxy with all its ports, which counts as dead when a part of it is silent for more than two seconds."""
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    tritons = [{"grpc": start_fake(_echo).address, "http": fake_http}]
    options = getattr(request, "param", {})
    return serve_here([], tritons=tritons, listen=listen, limits={"liveness_timeout_s": 2.0}, **options)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """From now on the policy does not return: (whether it was called, what lets it return)."""
    hangs, released = threading.Event(), threading.Event()
    handle = Fifs.handle

    def never(policy: Any, event: Any) -> Any:
        hangs.set()
        assert released.wait(60)
        return handle(policy, event)

    monkeypatch.setattr(Fifs, "handle", never)
    yield hangs, released
    released.set()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_while_a_policy_hangs_no_probe_is_told_that_all_is_well(
    protocol: str, world: Any, hang: tuple[threading.Event, threading.Event], start_call: Make, call: Make
) -> None:
    http, metrics = world.serving.http_address, world.serving.metrics_address
    assert _get(http, "/v2/health/live") == (200, "")
    with ThreadPoolExecutor(2) as pool:
        if protocol == "grpc":
            running = start_call(world, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60)
        else:
            over_http = pool.submit(_get, http, "/v2/models/echo/infer", BODY)
        assert hang[0].wait(120)
        probe = pool.submit(_get, http, "/v2/health/live")
        assert call(world, "ServerLive", b"", timeout=1)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not probe.done()
        hang[1].set()
        assert (outcome(running)[0] is OK) if protocol == "grpc" else (over_http.result()[0] == 200)
        assert probe.result()[0] in {200, 503}  # who comes first, the probe or what was to be done long ago
    assert _get(http, "/v2/health/live") == (200, "")
    assert call(world, "ServerLive", b"") == (OK, LIVE)
    assert "tidegate_healthy 1.0" in _get(metrics, "/metrics")[1]


def test_an_engine_that_is_not_woken_is_told_by_every_probe(world: Any, call: Make) -> None:
    http, metrics = world.serving.http_address, world.serving.metrics_address
    alarm = world.serving.driver._engine._alarm
    world.in_loop(lambda: asyncio.get_running_loop().remove_reader(alarm._timer))
    world.in_loop(lambda: alarm.set(time.monotonic_ns()))
    eventually(lambda: _get(http, "/v2/health/live")[0] == 503, "HTTP to say so")
    assert "no sign of life from the engine for" in json.loads(_get(http, "/v2/health/live")[1])["error"]
    assert _get(http, "/v2/health/ready")[0] == 400
    assert call(world, "ServerLive", b"") == (OK, b"")
    assert call(world, "ServerReady", b"") == (OK, b"")
    assert call(world, "/grpc.health.v1.Health/Check", b"") == (OK, b"\x08\x02")
    page = _get(metrics, "/metrics")[1]
    assert "tidegate_healthy 0.0" in page
    assert 'tidegate_heartbeat_age_seconds{part="engine"}' in page
    assert "tidegate_requests_total" in page
    world.in_loop(lambda: alarm.set(time.monotonic_ns() + 3_600_000_000_000))
    assert _get(http, "/v2/health/live")[0] == 200
    assert call(world, "ServerLive", b"") == (OK, LIVE)


@pytest.fixture
def command(start_fake: Make, start_tidegate: Make, tmp_path: Path) -> Callable[..., tuple[Any, Callable[..., None]]]:
    """`command(**fields)`: a `tidegate serve` with such a configuration file, and what changes that and says so."""

    def start(**fields: Any) -> tuple[Any, Callable[..., None]]:
        path = tmp_path / "tidegate.yaml"
        given = {"tritons": [start_fake(_echo).address], "policy": "fifs", "drain_timeout_s": 1, **fields}
        given["listen"] = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}

        def write(**changed: Any) -> None:
            path.write_text(yaml.safe_dump(given | changed))

        write()
        tidegate = start_tidegate([], config=path)

        def change(**changed: Any) -> None:
            write(**changed)
            os.kill(tidegate.pid, signal.SIGHUP)

        return tidegate, change

    return start


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_costs_the_event_log_and_nothing_else(command: Make, call: Make) -> None:
    tidegate, _ = command(event_log="/dev/full")
    for number in range(300):
        assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}, id=str(number)))[0] is OK
    eventually(lambda: "observer removed after an error" in tidegate.log, "the log to say so")
    assert tidegate.log.count("(observer=Recorder)") == 1
    metrics = tidegate.output.split("metrics")[1].strip().rstrip("/")
    assert "tidegate_observers_removed_total 1.0" in _get(metrics, "/metrics")[1]
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    assert tidegate.stop()["answered"] == 301
    assert "Traceback" not in tidegate.log


def test_a_reload_is_taken_up_whole_or_refused_whole_and_the_next_one_works(
    command: Make, call: Make, start_fake: Make, tmp_path: Path
) -> None:
    tidegate, change = command()
    refused = "configuration not applied, nothing has changed"
    layout = tmp_path / "layout.json"
    layout.write_text("{nonsense")
    other = start_fake(_echo)
    mute = start_fake(_echo)
    del mute.answers["RepositoryIndex"]
    bad: list[dict[str, Any]] = [
        {"layout": str(layout), "tritons": [{"grpc": other.address, "worker": "w"}]},
        {"tritons": ["127.0.0.1:1"]},
        {"tritons": [mute.address]},
        {"policy": 5},
        {"authentication": {"tokens_file": str(tmp_path)}},
    ]
    for number, fields in enumerate(bad, 1):
        # What goes with it must not be taken up either: nobody may call without a token of this file.
        change(**{"authentication": {"tokens_file": str(layout)}, **fields})
        eventually(lambda number=number: tidegate.log.count(refused) == number, f"{fields} to be refused")
        assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    change(log={"level": "debug"})
    eventually(lambda: "configuration applied (changed=log.level" in tidegate.log, "the next one to be taken up")
    change(tritons=[other.address])
    eventually(
        lambda: "configuration applied (changed=log.level, tritons" in tidegate.log, "another Triton to be taken up"
    )
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    tidegate.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_asked_to_stop_while_it_waits_for_tritons(number: signal.Signals, tmp_path: Path) -> None:
    """Its Triton takes connections, and says nothing; it would be waited for for five minutes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        arguments = [
            "--triton",
            f"127.0.0.1:{silent.getsockname()[1]}",
            "--startup-timeout-s",
            "300",
            "--listen",
            "127.0.0.1:0",
        ]
        command = [sys.executable, "-c", "from tidegate.cli import main; main()", "serve", *arguments]
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            silent.settimeout(60)
            silent.accept()[0].close()
            process.send_signal(number)
            assert process.wait(30) == 0
    said = (tmp_path / "log").read_text()
    assert "stopped before serving" in said
    assert "Traceback" not in said
