"""Tritons that die, hang, restart or do not answer: every request is answered elsewhere or told why not, once."""

import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import SHARDS, eventually
from tests.proxy.fixtures.calls import outcome, request_of, rest_of
from tests.proxy.fixtures.fake_answers import ROW, Gated, echo, noise
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.servers import grpc as frontend
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
OK, UNAVAILABLE, INTERNAL = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


FLAT = b'{"inputs":[{"name":"X","shape":[3],"datatype":"FP32","data":[1,2,3]}]}'


def _over_http(tidegate: Any, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    """The status and the body of the answer to a call about models."""
    found = re.search(r"HTTP +(\S+)\n", tidegate.output)
    assert found
    connection = http.client.HTTPConnection(found[1], timeout=30)
    try:
        connection.request(method, f"/v2/models/{path}", body)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.fixture
def two_gated(gate: Any, start_triton: Make, tmp_path: Path) -> list[EmbeddedTriton]:
    """Two Tritons whose models wait at the gate."""
    add_model(tmp_path / "models", "gated", "max_batch_size: 4", gate=gate.file)
    return [start_triton([tmp_path / "models"]) for _ in range(2)]


@pytest.fixture
def hung() -> Iterator[Callable[[EmbeddedTriton], Callable[[], None]]]:
    """`go_on = hung(triton)`: its process stands still until `go_on()`."""
    stopped = []

    def stop(triton: EmbeddedTriton) -> Callable[[], None]:
        os.kill(triton.pid, signal.SIGSTOP)
        stopped.append(triton.pid)
        return lambda: os.kill(triton.pid, signal.SIGCONT)

    yield stop
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_what_ran_and_what_queued_is_answered_by_the_other(
    two_gated: list[EmbeddedTriton], gate: Any, serve_here: Make, start_call: Make
) -> None:
    proxy = serve_here(two_gated)
    calls = [start_call(proxy, "ModelInfer", request_of("gated", {"X": number * ROW})) for number in range(30)]
    eventually(
        lambda: (proxy.engine.tally.accepted, proxy.engine.in_flight) == (30, 2), "both to run and the rest to queue"
    )
    os.kill(two_gated[0].pid, signal.SIGKILL)
    eventually(lambda: proxy.engine.in_flight == 1, "the loss to be noticed")
    gate.open()
    for number, call in enumerate(calls):
        code, answer = outcome(call)
        assert code is OK
        answered = service_pb2.ModelInferResponse.FromString(answer)
        assert answered.raw_output_contents[0] == (number * ROW).tobytes()
    tally = proxy.stop()
    assert (tally.accepted, tally.answered, tally.ended) == (30, 30, 30)


def test_whose_time_is_up_is_told_and_not_tried_again(
    two_gated: list[EmbeddedTriton], gate: Any, serve_here: Make, start_call: Make
) -> None:
    proxy = serve_here(two_gated[:1])
    hurried = request_of("gated", {"X": ROW})
    hurried.parameters["timeout"].int64_param = 100_000
    hurried.parameters["slo_ms"].int64_param = 3_600_000
    running = start_call(proxy, "ModelInfer", hurried)
    eventually(gate.somebody_waits, "the model to run")
    its_time_is_up = time.monotonic() + 0.1
    patient = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(lambda: proxy.engine.queued == 1, "it to queue")
    eventually(lambda: time.monotonic() > its_time_is_up, "the time of the one that runs to pass")
    os.kill(two_gated[0].pid, signal.SIGKILL)
    address = two_gated[0].grpc_address
    assert outcome(running) == (UNAVAILABLE, f"worker {address}/gated/0 was lost")
    assert outcome(patient) == (UNAVAILABLE, "no worker is left that hosts this model")
    assert proxy.stop().failed == 2


@pytest.mark.parametrize("policy_name", ["fifs", pytest.param("symphony", marks=pytest.mark.slow)])
def test_a_hung_triton_is_given_up_and_taken_back(
    policy_name: str,
    hung: Make,
    start_triton: Make,
    start_tidegate: Make,
    start_call: Make,
    call: Make,
    open_stream: Make,
    tmp_path: Path,
) -> None:
    add_model(tmp_path, "echo", "max_batch_size: 4")
    add_model(tmp_path, "flat", "max_batch_size: 0")
    first, second = start_triton([tmp_path]), start_triton([tmp_path])
    config = tmp_path / "tidegate.json"
    addresses = [{"grpc": triton.grpc_address, "http": triton.http_address} for triton in (first, second)]
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    config.write_text(json.dumps({"tritons": addresses, "listen": listen, "policy": policy_name}))
    tidegate = start_tidegate([], config=config)
    go_on = hung(first)
    # What is not scheduled goes to the Tritons by turns: the first of two streams to the one that hangs.
    streams = [open_stream(tidegate, [request_of("flat", {"X": ROW[0]})]) for _ in range(2)]
    watching = ThreadPoolExecutor(2)
    ended = [watching.submit(rest_of, stream) for stream in streams]
    eventually(lambda: any(one.done() for one in ended), "the other one to be answered")
    calls = [start_call(tidegate, "ModelInfer", request_of("echo", {"X": ROW})) for _ in range(20)]
    forwarded = [start_call(tidegate, "ModelInfer", request_of("flat", {"X": ROW[0]})) for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        over_http = [pool.submit(_over_http, tidegate, "POST", "flat/infer", FLAT) for _ in range(2)]
        about = pool.submit(_over_http, tidegate, "GET", "flat/config")
        assert [answer.result(120)[0] for answer in over_http] == [200, 200]
        assert about.result(120)[0] == 503
        assert f"{first.http_address} cannot be reached: it does not answer" in about.result()[1]
    assert [outcome(one)[0] for one in calls] == [OK] * 20
    assert [outcome(one)[0] for one in forwarded] == [OK] * 2
    told = (UNAVAILABLE, f"Triton at {first.grpc_address} does not answer")
    assert ([], *told) in [one.result(30) for one in ended]
    watching.shutdown()
    assert re.search(rf"triton lost: it did not answer.*\(triton={first.grpc_address}", tidegate.log)
    assert call(tidegate, "ModelInfer", request_of("flat", {"X": ROW[0]}))[0] is OK
    go_on()
    eventually(lambda: f"triton back (triton={first.grpc_address})" in tidegate.log, "it to be taken back")

    def executions() -> int:
        _, answer = call(first, "ModelStatistics", service_pb2.ModelStatisticsRequest(name="echo"))
        return int(service_pb2.ModelStatisticsResponse.FromString(answer).model_stats[0].execution_count)

    before = executions()

    def is_used() -> bool:
        some = [start_call(tidegate, "ModelInfer", request_of("echo", {"X": ROW})) for _ in range(10)]
        assert [outcome(one)[0] for one in some] == [OK] * 10
        return executions() > before

    eventually(is_used, "it to be used again")
    tally = tidegate.stop()
    assert tally["accepted"] == tally["answered"]


def test_it_is_back_when_it_says_so(
    start_triton: Make, start_tidegate: Make, call: Make, tmp_path: Path, transport_of_tests: str
) -> None:
    if transport_of_tests == SHARDS:
        pytest.skip("ready while one of the shards is")
    add_model(tmp_path, "echo", "max_batch_size: 4")
    triton = start_triton([tmp_path])
    port = int(triton.grpc_address.rpartition(":")[2])
    tidegate = start_tidegate([triton])
    for times in (1, 2, 3):
        triton.stop()
        eventually(lambda: call(tidegate, "ServerReady", b"") == (OK, b""), "the loss to be noticed")
        assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is UNAVAILABLE
        triton = start_triton([tmp_path], grpc_port=port)
        eventually(lambda seen=times: tidegate.log.count("triton back") == seen, "it to be found again")
        for _ in range(20):
            assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK


def test_a_batch_that_is_never_answered(start_fake: Make, serve_here: Make, call: Make, start_call: Make) -> None:
    released = threading.Event()
    cancelled = threading.Event()

    def swallow(request: Any, context: Any) -> bytes:
        if request.id == "swallowed":
            context.add_callback(cancelled.set)
            released.wait(120)
        return echo(request)

    fake = start_fake(swallow)
    proxy = serve_here([fake], limits={"execution_timeout_s": 2.0})
    swallowed = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}, id="swallowed"))
    eventually(lambda: proxy.engine.in_flight == 1, "it to run")
    behind = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}, id="behind"))
    assert outcome(swallowed) == (UNAVAILABLE, f"Triton at {fake.address} did not answer within 2 s")
    assert outcome(behind)[0] is OK  # it stayed in the queue
    assert cancelled.wait(120)
    released.set()
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    tally = proxy.stop()
    assert (tally.accepted, tally.answered, tally.failed) == (3, 2, 1)


def test_a_batch_that_is_never_answered_is_answered_elsewhere(
    start_fake: Make, serve_here: Make, call: Make, start_call: Make
) -> None:
    released = threading.Event()
    seen: list[str] = []

    def swallow(request: Any, _context: Any) -> bytes:
        seen.append("swallowed")
        released.wait(120)
        return echo(request)

    def answer(request: Any, _context: Any) -> bytes:
        seen.append("answered")
        return echo(request)

    proxy = serve_here([start_fake(swallow), start_fake(answer)], limits={"execution_timeout_s": 2.0})
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    assert seen == ["swallowed", "answered"]
    released.set()
    eventually(
        lambda: call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK and seen.count("swallowed") > 1,
        "the worker to be used again",
    )
    tally = proxy.stop()
    assert tally.answered == tally.accepted


def test_probes_that_are_answered_with_noise(
    start_fake: Make, serve_here: Make, call: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.EVERY_S", 0.02)
    fake = start_fake(echo)
    proxy = serve_here([fake])
    live, ready = fake.answers.pop("ServerLive"), fake.answers["ServerReady"]
    eventually(lambda: "it did not answer 3 probes" in caplog.text, "it to be given up")
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is UNAVAILABLE
    fake.answers |= {"ServerLive": live, "ServerReady": noise(None, None)}
    probe = f"a probe of Triton at {fake.address}"
    eventually(lambda: faults.counts().get(probe, 0) > 2, "probes to fail")  # the log tells a fault once a minute
    fake.answers["ServerReady"] = ready
    eventually(lambda: call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK, "it to be taken back")


def test_a_client_that_cannot_be_told_spares_the_others(
    start_fake: Make,
    serve_here: Make,
    start_call: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def resolve(client: Any, result: Any) -> None:
        if client.envelope.id == "0":
            raise ValueError("it cannot be told")
        told(client, result)

    told = frontend._UnaryClient.resolve
    monkeypatch.setattr(frontend._UnaryClient, "resolve", resolve)
    fake = start_fake(Gated(lambda _request, context: context.abort(INTERNAL, "not reached")))
    proxy = serve_here([fake])
    running = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))
    eventually(lambda: proxy.engine.in_flight == 1, "it to run")
    calls = [start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}, id=str(number))) for number in range(4)]
    eventually(lambda: proxy.engine.queued == 4, "them to queue")
    del fake.answers["ServerLive"]
    assert [outcome(call)[0] for call in (running, *calls[1:])] == [UNAVAILABLE] * 4
    assert "it cannot be told" in caplog.text
    calls[0].cancel()
