"""A policy that never returns: whoever can still answer says that Tidegate does not live; and what a full disk does."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
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

from tidegate_baselines.fifs import Fifs
from tidegate_proxy.limits import Limits

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
LIVE = service_pb2.ServerLiveResponse(live=True).SerializeToString()
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}).encode()


def _echo(request: Any, _context: Any = None) -> bytes:  # noqa: ANN401
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
def world(start_fake: Make, serve_here: Make) -> Any:  # noqa: ANN401
    """A proxy with all its ports, which counts as dead when a part of it is silent for more than a second."""
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    tritons = [{"grpc": start_fake(_echo).address, "http": "127.0.0.1:1"}]
    return serve_here([], tritons=tritons, listen=listen, limits=Limits(silence_s=1.0))


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """From now on the policy does not return: (whether it was called, what lets it return)."""
    hangs, released = threading.Event(), threading.Event()
    handle = Fifs.handle

    def never(policy: Any, event: Any) -> Any:  # noqa: ANN401
        hangs.set()
        assert released.wait(60)
        return handle(policy, event)

    monkeypatch.setattr(Fifs, "handle", never)
    yield hangs, released
    released.set()


def test_a_policy_that_hangs_the_grpc_thread_is_told_over_http(
    world: Any,  # noqa: ANN401
    hang: tuple[threading.Event, threading.Event],
    start_call: Make,
    request_of: Make,
    outcome: Make,
    eventually: Make,
) -> None:
    http, metrics = world.serving.http_address, world.serving.metrics_address
    assert _get(http, "/v2/health/live") == (200, "")
    running = start_call(world, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60)
    assert hang[0].wait(20)
    eventually(lambda: _get(http, "/v2/health/live")[0] == 503, "HTTP to say so")
    complaint = json.loads(_get(http, "/v2/health/live")[1])["error"]
    assert "no sign of life from the engine for" in complaint
    assert "gRPC thread" in complaint
    assert _get(http, "/v2/health/ready")[0] == 400
    page = _get(metrics, "/metrics")[1]
    assert "tidegate_live 0.0" in page
    assert 'tidegate_silence_seconds{part="engine"}' in page
    status, words = _get(http, "/v2/models/echo/infer", BODY)
    assert (status, "its policy has not returned" in words) == (503, True)
    hang[1].set()
    assert outcome(running)[0] is OK
    eventually(lambda: _get(http, "/v2/health/live")[0] == 200, "it to live again")
    page = _get(metrics, "/metrics")[1]
    assert "tidegate_live 1.0" in page
    assert "tidegate_requests_total" in page


def test_a_policy_that_hangs_the_event_loop_is_told_over_grpc(
    world: Any,  # noqa: ANN401
    hang: tuple[threading.Event, threading.Event],
    call: Make,
    eventually: Make,
) -> None:
    assert call(world, "ServerLive", b"") == (OK, LIVE)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_get, world.serving.http_address, "/v2/models/echo/infer", BODY)
        assert hang[0].wait(20)
        eventually(lambda: call(world, "ServerLive", b"") == (OK, b""), "gRPC to say so")
        assert call(world, "ServerReady", b"") == (OK, b"")
        assert call(world, "/grpc.health.v1.Health/Check", b"") == (OK, b"\x08\x02")
        hang[1].set()
        assert running.result()[0] == 200
    eventually(lambda: call(world, "ServerLive", b"") == (OK, LIVE), "it to live again")


@pytest.fixture
def command(start_fake: Make, start_tidegate: Make, tmp_path: Path) -> Callable[..., tuple[Any, Callable[..., None]]]:
    """`command(**fields)`: a `tidegate serve` with such a configuration file, and what changes that and says so."""

    def start(**fields: Any) -> tuple[Any, Callable[..., None]]:  # noqa: ANN401
        path = tmp_path / "tidegate.yaml"
        given = {"tritons": [start_fake(_echo).address], "policy": "fifs", "drain_s": 1, **fields}
        given["listen"] = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}

        def write(**changed: Any) -> None:  # noqa: ANN401
            path.write_text(yaml.safe_dump(given | changed))

        write()
        tidegate = start_tidegate([], config=path)

        def change(**changed: Any) -> None:  # noqa: ANN401
            write(**changed)
            os.kill(tidegate.pid, signal.SIGHUP)

        return tidegate, change

    return start


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_costs_the_event_log_and_nothing_else(
    command: Make, call: Make, request_of: Make, eventually: Make
) -> None:
    tidegate, _ = command(record="/dev/full")
    for number in range(300):
        assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}, id=str(number)))[0] is OK
    eventually(lambda: "observer Recorder broke and sees nothing more" in tidegate.log, "the log to say so")
    assert tidegate.log.count("observer Recorder broke") == 1
    metrics = tidegate.output.split("metrics")[1].strip().rstrip("/")
    assert "tidegate_observers_removed_total 1.0" in _get(metrics, "/metrics")[1]
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    assert tidegate.stop()["answered"] == 301
    assert "Traceback" not in tidegate.log


def test_a_reload_is_taken_up_whole_or_refused_whole_and_the_next_one_works(
    command: Make, call: Make, request_of: Make, eventually: Make, start_fake: Make, tmp_path: Path
) -> None:
    tidegate, change = command()
    refused = "the configuration was not taken up, and nothing has changed"
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
    eventually(lambda: "configuration taken up: log.level" in tidegate.log, "the next one to be taken up")
    change(tritons=[other.address])
    eventually(lambda: "configuration taken up: log.level, tritons" in tidegate.log, "another Triton to be taken up")
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    tidegate.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_while_it_waits_for_tritons(number: signal.Signals, tmp_path: Path) -> None:
    """Its Triton takes connections, and says nothing; it would be waited for for five minutes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        arguments = ["--triton", f"127.0.0.1:{silent.getsockname()[1]}", "--wait-s", "300", "--listen", "127.0.0.1:0"]
        command = [sys.executable, "-c", "from tidegate.cli import main; main()", "serve", *arguments]
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            silent.settimeout(60)
            silent.accept()[0].close()
            process.send_signal(number)
            assert process.wait(30) == 0
    said = (tmp_path / "log").read_text()
    assert "asked to stop before anything was served" in said
    assert "Traceback" not in said
