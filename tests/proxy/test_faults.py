"""Tritons that die, hang, restart or answer nonsense: every request is answered elsewhere or told why not, once."""

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
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tidegate_proxy import front
from tidegate_proxy.driver import Driver
from tidegate_proxy.embedded import EmbeddedTriton
from tidegate_proxy.faults import faults
from tidegate_proxy.limits import Limits
from tidegate_proxy.spoilers import RetryBudget

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK, UNAVAILABLE, INTERNAL = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


FLAT = b'{"inputs":[{"name":"X","shape":[3],"datatype":"FP32","data":[1,2,3]}]}'


def _over_http(tidegate: Any, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:  # noqa: ANN401
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
def two_gated(gate: Any, add_model: Make, start_triton: Make, tmp_path: Path) -> list[EmbeddedTriton]:  # noqa: ANN401
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
    two_gated: list[EmbeddedTriton],
    gate: Any,  # noqa: ANN401
    serve_here: Make,
    start_call: Make,
    request_of: Make,
    outcome: Make,
    eventually: Make,
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
    two_gated: list[EmbeddedTriton],
    gate: Any,  # noqa: ANN401
    serve_here: Make,
    start_call: Make,
    request_of: Make,
    outcome: Make,
    eventually: Make,
) -> None:
    proxy = serve_here(two_gated[:1])
    hurried = request_of("gated", {"X": ROW})
    hurried.parameters["timeout"].int64_param = 100_000
    running = start_call(proxy, "ModelInfer", hurried)
    eventually(gate.somebody_waits, "the model to run")
    patient = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(lambda: proxy.engine.queued == 1, "it to queue")
    os.kill(two_gated[0].pid, signal.SIGKILL)
    address = two_gated[0].grpc_address
    assert outcome(running) == (UNAVAILABLE, f"worker {address}/0 was lost")
    assert outcome(patient) == (UNAVAILABLE, "no worker is left that hosts this model")
    assert proxy.stop().failed == 2


@pytest.mark.parametrize("policy_name", ["fifs", pytest.param("symphony", marks=pytest.mark.slow)])
def test_a_hung_triton_is_given_up_and_taken_back(
    policy_name: str,
    hung: Make,
    add_model: Make,
    start_triton: Make,
    start_tidegate: Make,
    start_call: Make,
    call: Make,
    open_stream: Make,
    rest_of: Make,
    request_of: Make,
    outcome: Make,
    eventually: Make,
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
    assert f"Triton at {first.grpc_address} is lost: it did not answer" in tidegate.log
    assert call(tidegate, "ModelInfer", request_of("flat", {"X": ROW[0]}))[0] is OK
    go_on()
    eventually(lambda: f"Triton at {first.grpc_address} is back" in tidegate.log, "it to be taken back")

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
    add_model: Make,
    start_triton: Make,
    start_tidegate: Make,
    call: Make,
    request_of: Make,
    eventually: Make,
    tmp_path: Path,
) -> None:
    add_model(tmp_path, "echo", "max_batch_size: 4")
    triton = start_triton([tmp_path])
    port = int(triton.grpc_address.rpartition(":")[2])
    tidegate = start_tidegate([triton])
    for times in (1, 2, 3):
        triton.stop()
        eventually(lambda: call(tidegate, "ServerReady", b"") == (OK, b""), "the loss to be noticed")
        assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is UNAVAILABLE
        triton = start_triton([tmp_path], grpc_port=port)
        eventually(lambda seen=times: tidegate.log.count("is back") == seen, "it to be found again")
        for _ in range(20):
            assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK


# A Triton that is not one ------------------------------------------------------------------------------------------


def _echo(request: Any, _context: Any = None) -> bytes:  # noqa: ANN401
    answer = service_pb2.ModelInferResponse(model_name="echo", model_version="1", id=request.id)
    answer.outputs.add(name="Y", datatype="FP32", shape=request.inputs[0].shape)
    answer.raw_output_contents.append(request.raw_input_contents[0])
    return bytes(answer.SerializeToString())


def _noise(_request: Any, _context: Any) -> bytes:  # noqa: ANN401
    return b"\xff\x00nonsense" * 5


def _too_few_rows(request: Any, _context: Any) -> bytes:  # noqa: ANN401
    request.inputs[0].shape[0] -= 1
    request.raw_input_contents[0] = request.raw_input_contents[0][: -ROW.nbytes]
    return _echo(request)


def _wrong_size(request: Any, _context: Any) -> bytes:  # noqa: ANN401
    request.raw_input_contents[0] += b"abc"
    return _echo(request)


class Gated:
    """Answers its first call when it is let, as it should; those after it otherwise."""

    def __init__(self, otherwise: Callable[[Any, Any], bytes]) -> None:
        self.go_on = threading.Event()
        self.entered = threading.Event()
        self.calls = 0
        self._otherwise = otherwise

    def __call__(self, request: Any, context: Any) -> bytes:  # noqa: ANN401
        self.calls += 1
        if not self.entered.is_set():
            self.entered.set()
            assert self.go_on.wait(120)
            return _echo(request)
        return self._otherwise(request, context)


@pytest.fixture
def merged(start_call: Make, request_of: Make, outcome: Make, eventually: Make) -> Callable[[Any, Gated], list[Any]]:
    """`merged(proxy, fake)`: how four requests end that went to it as one batch."""

    def run(proxy: Any, fake: Gated) -> list[Any]:  # noqa: ANN401
        first = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))
        assert fake.entered.wait(120)
        calls = [start_call(proxy, "ModelInfer", request_of("echo", {"X": n * ROW}, id=str(n))) for n in range(4)]
        eventually(lambda: proxy.engine.queued == 4, "them to queue")
        fake.go_on.set()
        assert outcome(first)[0] is OK
        return [outcome(call) for call in calls]

    return run


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_noise, "Triton's answer is no ModelInferResponse"),
        (_too_few_rows, "it does not begin with the batch's 4 rows"),
        (_wrong_size, "bytes are no 4 equal rows"),
    ],
)
def test_an_answer_that_cannot_be_divided(
    answer: Make, words: str, start_fake: Make, serve_here: Make, merged: Make, call: Make, request_of: Make
) -> None:
    fake = Gated(answer)
    proxy = serve_here([start_fake(fake)])
    for code, details in merged(proxy, fake):
        assert code is INTERNAL
        assert words in details
    assert fake.calls == 2
    assert call(proxy, "ServerReady", b"")[0] is OK
    assert proxy.stop().ended == 5


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, INTERNAL, grpc.StatusCode.CANCELLED])
def test_one_request_of_a_batch_is_refused(
    code: grpc.StatusCode, start_fake: Make, serve_here: Make, merged: Make
) -> None:
    def refuse(request: Any, context: Any) -> bytes:  # noqa: ANN401
        if request.inputs[0].shape[0] > 1 or request.id == "2":
            context.abort(code, "no such thing")
        return _echo(request)

    fake = Gated(refuse)
    proxy = serve_here([start_fake(fake)])
    outcomes = merged(proxy, fake)
    assert outcomes[2] == (code, "no such thing")
    for number in (0, 1, 3):
        answer = service_pb2.ModelInferResponse.FromString(outcomes[number][1])
        assert (answer.id, answer.raw_output_contents[0]) == (str(number), (number * ROW).tobytes())
    assert fake.calls <= 8  # it, its halves, and each alone
    tally = proxy.stop()
    assert (tally.ended, tally.answered, tally.failed) == (5, 4, 1)


def test_a_batch_that_finds_no_room_is_tried_again_as_it_is(start_fake: Make, serve_here: Make, merged: Make) -> None:
    fake = Gated(lambda request, context: context.abort(UNAVAILABLE, "Exceeds maximum queue size"))
    proxy = serve_here([start_fake(fake)])
    assert merged(proxy, fake) == [(UNAVAILABLE, "Exceeds maximum queue size")] * 4
    assert fake.calls > 2
    assert proxy.stop().failed == 4


def test_a_batch_that_fails_is_neither_answered_nor_learned_from(
    start_fake: Make, serve_here: Make, call: Make, request_of: Make
) -> None:
    def fail(_request: Any, context: Any) -> bytes:  # noqa: ANN401
        time.sleep(0.05)  # what a backend takes that breaks late
        context.abort(INTERNAL, "it breaks")
        return b""

    proxy = serve_here([start_fake(fail)])
    expected = dict(proxy.engine.expectations.profiles)
    for _ in range(20):
        assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW})) == (INTERNAL, "it breaks")
    assert proxy.engine.expectations.profiles == expected
    tally = proxy.stop()
    assert (tally.accepted, tally.failed, tally.answered, tally.late) == (20, 20, 0, 0)


def test_who_spoils_batches_runs_alone_for_a_while(
    start_fake: Make, serve_here: Make, merged: Make, call: Make, request_of: Make, eventually: Make
) -> None:
    sizes: list[int] = []

    def refuse(request: Any, context: Any) -> bytes:  # noqa: ANN401
        sizes.append(request.inputs[0].shape[0])
        if 2 in np.frombuffer(request.raw_input_contents[0], np.float32):
            context.abort(INTERNAL, "it is spoiled")
        return _echo(request)

    fake = Gated(refuse)
    proxy = serve_here([start_fake(fake)])
    assert [answer[0] for answer in merged(proxy, fake)] == [OK, OK, INTERNAL, OK]
    assert sizes[0] == 4
    assert set(sizes[1:]) == {1, 2}
    sizes.clear()
    fake.go_on.clear()
    fake.entered.clear()
    assert [answer[0] for answer in merged(proxy, fake)] == [OK, OK, INTERNAL, OK]
    assert sizes == [1, 1, 1, 1]  # at once: nobody waited for it to be found


def test_who_spoils_batches_is_found_though_none_of_them_is_tried_again(
    start_fake: Make,
    serve_here: Make,
    start_call: Make,
    request_of: Make,
    outcome: Make,
    eventually: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate_proxy.serve.FIRST_LEAD_NS", 0)  # no batch is sent ahead: all four share one

    def refuse(request: Any, context: Any) -> bytes:  # noqa: ANN401
        if 2 in np.frombuffer(request.raw_input_contents[0], np.float32):
            context.abort(INTERNAL, "it is spoiled")
        return _echo(request)

    fake = Gated(refuse)
    proxy = serve_here([start_fake(fake)], clients={"by": "metadata", "key": "who"}, retries={"budget": 0.0})
    proxy.serving.driver.recovery._budget._spent = RetryBudget.FLOOR

    def ask() -> list[bool]:
        """Whether each of four clients is answered whose requests come while the worker is busy."""
        fake.go_on.clear()
        fake.entered.clear()
        first = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), metadata=[("who", "another")])
        assert fake.entered.wait(120)
        calls = [
            start_call(proxy, "ModelInfer", request_of("echo", {"X": n * ROW}), metadata=[("who", str(n))])
            for n in range(4)
        ]
        eventually(lambda: proxy.engine.queued == 4, "them to queue")
        fake.go_on.set()
        assert outcome(first)[0] is OK
        return [outcome(call)[0] is OK for call in calls]

    assert ask() == [False, False, False, False]
    assert ask() == [True, True, False, False]
    for _ in range(20):
        assert ask() == [True, True, False, True]


def test_without_a_budget_a_batch_fails_as_a_whole(start_fake: Make, serve_here: Make, merged: Make) -> None:
    fake = Gated(lambda request, context: context.abort(INTERNAL, "it is spoiled"))
    proxy = serve_here([start_fake(fake)], retries={"budget": 0.0})
    proxy.serving.driver.recovery._budget._spent = RetryBudget.FLOOR
    assert merged(proxy, fake) == [(INTERNAL, "it is spoiled")] * 4
    assert fake.calls == 2


def test_a_batch_that_is_never_answered(
    start_fake: Make, serve_here: Make, call: Make, start_call: Make, request_of: Make, outcome: Make, eventually: Make
) -> None:
    released = threading.Event()
    cancelled = threading.Event()

    def swallow(request: Any, context: Any) -> bytes:  # noqa: ANN401
        if request.id == "swallowed":
            context.add_callback(cancelled.set)
            released.wait(120)
        return _echo(request)

    fake = start_fake(swallow)
    proxy = serve_here([fake], limits=Limits(leg_s=1.0))
    swallowed = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}, id="swallowed"))
    eventually(lambda: proxy.engine.in_flight == 1, "it to run")
    behind = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}, id="behind"))
    assert outcome(swallowed) == (UNAVAILABLE, f"Triton at {fake.address} did not answer within 1 s")
    assert outcome(behind)[0] is OK  # it stayed in the queue
    assert cancelled.wait(120)
    released.set()
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    tally = proxy.stop()
    assert (tally.accepted, tally.answered, tally.failed) == (3, 2, 1)


def test_a_batch_that_is_never_answered_is_answered_elsewhere(
    start_fake: Make, serve_here: Make, call: Make, start_call: Make, request_of: Make, outcome: Make, eventually: Make
) -> None:
    released = threading.Event()
    seen: list[str] = []

    def swallow(request: Any, _context: Any) -> bytes:  # noqa: ANN401
        seen.append("swallowed")
        released.wait(120)
        return _echo(request)

    def answer(request: Any, _context: Any) -> bytes:  # noqa: ANN401
        seen.append("answered")
        return _echo(request)

    proxy = serve_here([start_fake(swallow), start_fake(answer)], limits=Limits(leg_s=1.0))
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    assert seen == ["swallowed", "answered"]
    released.set()
    eventually(
        lambda: call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK and seen.count("swallowed") > 1,
        "the worker to be used again",
    )
    tally = proxy.stop()
    assert tally.answered == tally.accepted


def test_one_that_is_never_answered_alone(start_fake: Make, serve_here: Make, merged: Make) -> None:
    """A batch is refused, and of its requests, when each is alone, the second is swallowed."""
    released = threading.Event()

    def misbehave(request: Any, context: Any) -> bytes:  # noqa: ANN401
        if request.inputs[0].shape[0] > 1:
            context.abort(INTERNAL, "too many")
        if request.id == "1":
            released.wait(120)
        return _echo(request)

    fake = Gated(misbehave)
    server = start_fake(fake)
    proxy = serve_here([server], limits=Limits(leg_s=1.0))
    outcomes = merged(proxy, fake)
    assert outcomes[1] == (UNAVAILABLE, f"Triton at {server.address} did not answer within 1 s")
    assert [outcomes[number][0] for number in (0, 2, 3)] == [OK] * 3
    released.set()
    assert proxy.stop().ended == 5


def test_probes_that_are_answered_with_noise(
    start_fake: Make,
    serve_here: Make,
    call: Make,
    request_of: Make,
    eventually: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tidegate_proxy.probing.EVERY_S", 0.02)
    fake = start_fake(_echo)
    proxy = serve_here([fake])
    live, ready = fake.answers.pop("ServerLive"), fake.answers["ServerReady"]
    eventually(lambda: "it did not answer 3 probes" in caplog.text, "it to be given up")
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is UNAVAILABLE
    fake.answers |= {"ServerLive": live, "ServerReady": _noise(None, None)}
    probe = f"a probe of Triton at {fake.address}"
    eventually(lambda: faults.counts().get(probe, 0) > 2, "probes to fail")  # the log tells a fault once a minute
    fake.answers["ServerReady"] = ready
    eventually(lambda: call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK, "it to be taken back")


class Chaos:
    """Answers well, late, with an error, with noise or not at all, as a seeded generator has it."""

    def __init__(self, seed: int) -> None:
        self._generator = Random(seed)
        self._lock = threading.Lock()
        self.over = threading.Event()

    def __call__(self, request: Any, context: Any) -> bytes:  # noqa: ANN401
        with self._lock:
            luck = self._generator.random()
        if luck < 0.7 or self.over.is_set():
            return _echo(request)
        if luck < 0.8:
            self.over.wait(0.02)
            return _echo(request)
        if luck < 0.9:
            context.abort(self._generator.choice(list(grpc.StatusCode)[1:]), "bad luck")
        if luck < 0.98:
            return _too_few_rows(request, context)
        self.over.wait(120)
        return _echo(request)


class Callers:
    """Clients of every sort, in threads: some wait, some are in a hurry, some leave."""

    def __init__(self, proxy: Any, start_call: Make, open_stream: Make, request_of: Make) -> None:  # noqa: ANN401
        self._proxy = proxy
        self._start_call = start_call
        self._open_stream = open_stream
        self._request_of = request_of

    def __call__(self, seed: int) -> None:
        generator = Random(seed)
        for _ in range(60):
            rows = np.ones((generator.randint(1, 3), 3), np.float32)
            request = self._request_of("echo", {"X": rows}, id="mine")
            if generator.random() < 0.3:
                request.parameters["timeout"].int64_param = generator.randint(1, 50_000)
            if generator.random() < 0.5:
                self._ask(generator, request)
            else:
                self._stream(generator, request)

    def _ask(self, generator: Random, request: Any) -> None:  # noqa: ANN401
        call = self._start_call(self._proxy, "ModelInfer", request, timeout=generator.choice([0.01, 20]))
        if generator.random() < 0.2:
            call.cancel()
            return
        assert call.exception() is None or call.code() is not OK

    def _stream(self, generator: Random, request: Any) -> None:  # noqa: ANN401
        count, leaves = generator.randint(1, 8), generator.random() < 0.4
        metadata = [("triton_grpc_error", generator.choice(["true", "false"]))]
        stream = self._open_stream(self._proxy, [request] * count, metadata=metadata)
        if leaves:
            stream.cancel()
            return
        received = 0
        try:
            for _ in stream:
                received += 1
        except grpc.RpcError:
            assert dict(metadata)["triton_grpc_error"] == "true"
        else:
            assert received == count


def _come_and_go(fakes: list[Any], stop: threading.Event) -> None:
    """Fakes that do not answer probes for a while, one after the other."""
    generator = Random(1)
    live = fakes[0].answers["ServerLive"]
    while not stop.wait(0.2):
        fake = generator.choice(fakes)
        fake.answers.pop("ServerLive", None)
        stop.wait(0.1)
        fake.answers["ServerLive"] = live


@pytest.mark.parametrize("policy_name", ["fifs", "symphony"])
def test_whatever_happens_every_request_ends_once_and_nothing_is_left(
    policy_name: str,
    start_fake: Make,
    serve_here: Make,
    open_stream: Make,
    request_of: Make,
    start_call: Make,
    eventually: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate_proxy.probing.EVERY_S", 0.02)
    drivers: list[Driver] = []

    class Seen(Driver):
        def __init__(self, *arguments: Any) -> None:  # noqa: ANN401
            super().__init__(*arguments)
            drivers.append(self)

    monkeypatch.setattr("tidegate_proxy.serve.Driver", Seen)
    chaos = [Chaos(seed) for seed in range(3)]
    fakes = [start_fake(each) for each in chaos]
    proxy = serve_here(fakes, policy=policy_name, limits=Limits(requests=60, leg_s=0.1))
    callers = Callers(proxy, start_call, open_stream, request_of)
    stop = threading.Event()
    with ThreadPoolExecutor(9) as pool:
        coming = pool.submit(_come_and_go, fakes, stop)
        try:
            list(pool.map(callers, range(8), timeout=120))
        finally:
            stop.set()
        coming.result(120)
    for each in chaos:
        each.over.set()
    (driver,) = drivers
    tally = proxy.engine.tally
    eventually(lambda: tally.ended == tally.accepted and proxy.engine.in_flight == 0, "every request to have ended")
    eventually(lambda: not driver.waiting and not driver.legs, "the driver to forget them")
    assert (proxy.engine.queued, driver.clients.held_bytes) == (0, 0)
    assert tally.answered > 0


def test_a_client_that_cannot_be_told_spares_the_others(
    start_fake: Make,
    serve_here: Make,
    start_call: Make,
    request_of: Make,
    outcome: Make,
    eventually: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def resolve(client: Any, result: Any) -> None:  # noqa: ANN401
        if client.envelope.id == "0":
            raise ValueError("it cannot be told")
        told(client, result)

    told = front._UnaryClient.resolve
    monkeypatch.setattr(front._UnaryClient, "resolve", resolve)
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
