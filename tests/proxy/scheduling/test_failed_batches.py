"""Batches that a Triton refuses, or answers with nonsense: who is to blame fails, and runs alone for a while."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tests.proxy.fixtures.fake_answers import ROW, Gated, echo, noise, too_few_rows, wrong_size
from tidegate_proxy.scheduling.failures import RetryBudget

Make = Callable[..., Any]
OK, UNAVAILABLE, INTERNAL = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (noise, "Triton's answer is no ModelInferResponse"),
        (too_few_rows, "it does not begin with the batch's 4 rows"),
        (wrong_size, "bytes are no 4 equal rows"),
    ],
)
def test_an_answer_that_cannot_be_divided(
    answer: Make, words: str, start_fake: Make, serve_here: Make, merged: Make, call: Make
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
    def refuse(request: Any, context: Any) -> bytes:
        if request.inputs[0].shape[0] > 1 or request.id == "2":
            context.abort(code, "no such thing")
        return echo(request)

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
    start_fake: Make, serve_here: Make, call: Make
) -> None:
    def fail(_request: Any, context: Any) -> bytes:
        time.sleep(0.05)  # what a backend takes that breaks late
        context.abort(INTERNAL, "it breaks")
        return b""

    proxy = serve_here([start_fake(fail)])
    (guess,) = proxy.engine.expectations.profiles.values()
    for _ in range(20):
        assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW})) == (INTERNAL, "it breaks")
    of_shape = proxy.engine.expectations.profiles["echo", "default", "X:3"]
    assert (of_shape.expected, of_shape.planned) == (guess.expected, guess.planned)
    tally = proxy.stop()
    assert (tally.accepted, tally.failed, tally.answered, tally.late) == (20, 20, 0, 0)


def test_who_poisons_batches_runs_alone_for_a_while(
    start_fake: Make, serve_here: Make, merged: Make, call: Make
) -> None:
    sizes: list[int] = []

    def refuse(request: Any, context: Any) -> bytes:
        sizes.append(request.inputs[0].shape[0])
        if 2 in np.frombuffer(request.raw_input_contents[0], np.float32):
            context.abort(INTERNAL, "it is poisoned")
        return echo(request)

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


def test_who_poisons_batches_is_found_though_none_of_them_is_tried_again(
    start_fake: Make, serve_here: Make, start_call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_proxy.app.serve.FIRST_LEAD_NS", 0)  # no batch is sent ahead: all four share one

    def refuse(request: Any, context: Any) -> bytes:
        if 2 in np.frombuffer(request.raw_input_contents[0], np.float32):
            context.abort(INTERNAL, "it is poisoned")
        return echo(request)

    fake = Gated(refuse)
    proxy = serve_here([start_fake(fake)], clients={"by": "metadata", "key": "who"}, retries={"budget": 0.0})
    proxy.serving.driver.stages._recovery._budget._spent = RetryBudget.FLOOR

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
    fake = Gated(lambda request, context: context.abort(INTERNAL, "it is poisoned"))
    proxy = serve_here([start_fake(fake)], retries={"budget": 0.0})
    proxy.serving.driver.stages._recovery._budget._spent = RetryBudget.FLOOR
    assert merged(proxy, fake) == [(INTERNAL, "it is poisoned")] * 4
    assert fake.calls == 2


def test_one_that_is_never_answered_alone(start_fake: Make, serve_here: Make, merged: Make) -> None:
    """A batch is refused, and of its requests, when each is alone, the second is swallowed."""
    released = threading.Event()

    def misbehave(request: Any, context: Any) -> bytes:
        if request.inputs[0].shape[0] > 1:
            context.abort(INTERNAL, "too many")
        if request.id == "1":
            released.wait(120)
        return echo(request)

    fake = Gated(misbehave)
    server = start_fake(fake)
    proxy = serve_here([server], limits={"execution_timeout_s": 1.0})
    outcomes = merged(proxy, fake)
    assert outcomes[1] == (UNAVAILABLE, f"Triton at {server.address} did not answer within 1 s")
    assert [outcomes[number][0] for number in (0, 2, 3)] == [OK] * 3
    released.set()
    assert proxy.stop().ended == 5
