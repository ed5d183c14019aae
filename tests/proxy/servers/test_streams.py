"""ModelStreamInfer through Tidegate is that of Triton: the same messages, in the same order, the same end."""

import asyncio
import queue
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, rest_of
from tests.proxy.fixtures.gate import pending_at
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.servers import streams
from tidegate_proxy.service import stream_passthrough as relays
from tidegate_proxy.service.stream_passthrough import StreamRelay
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
FULL = np.ones((4, 3), np.float32)
Answered = tuple[list[Any], grpc.StatusCode, str]
OK = grpc.StatusCode.OK
STRICT = (("triton_grpc_error", "true"),)


def _request(
    model: str, name: str, array: "np.ndarray[Any, Any]" = ROW, /, **parameters: bool | int
) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model, id=name)
    message.inputs.add(name="X", datatype="FP32", shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    for key, value in parameters.items():
        field = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(message.parameters[key], field, value)
    return message


def _asks_for_final(model: str, name: str, array: "np.ndarray[Any, Any]" = ROW) -> service_pb2.ModelInferRequest:
    return _request(model, name, array, triton_enable_empty_final_response=True)


RAISES = _request("picky", "refused", -ROW)
CASES: dict[str, list[Any]] = {
    "nothing": [],
    "scheduled": [_request("echo", "a"), _asks_for_final("echo", "b"), _request("echo", "")],
    "no batch dimension": [_request("flat", "a", ROW[0]), _asks_for_final("flat", "b", ROW[0])],
    "an ensemble": [_request("chain", "a")],
    "several answers": [_request("repeater", "a"), _asks_for_final("repeater", "b")],
    "no answer": [_request("silent", "a"), _asks_for_final("silent", "b")],
    "a sequence": [
        _request("counter", "a", sequence_id=5, sequence_start=True),
        _request("counter", "b", sequence_id=5, sequence_end=True),
    ],
    "everything": [
        _request("echo", "a"),
        _asks_for_final("repeater", "b"),
        _request("flat", "c", ROW[0]),
        _request("echo", "d"),
        _asks_for_final("silent", "e"),
        _request("picky", "f"),
    ],
    "the model raises": [_request("echo", "a"), RAISES, _request("echo", "z")],
    "a step of an ensemble raises": [_request("chain", "a", -ROW)],
    "unknown model": [_request("echo", "a"), _request("nope", "b"), _request("echo", "c")],
    "unknown version": [service_pb2.ModelInferRequest(model_name="echo", model_version="7", id="a")],
    "no input": [service_pb2.ModelInferRequest(model_name="echo", id="a")],
    "a reserved parameter": [_request("echo", "a", triton_mine=True), _request("echo", "b")],
    "too many rows": [_request("echo", "a", np.ones((5, 3), np.float32)), _request("echo", "b")],
    "no sequence id": [_request("counter", "a")],
    "what is no message": [_request("echo", "a"), b"\xff" * 12],
}
ADDS_UP = "a sequence"


def _comparable(name: str, answers: list[Any]) -> list[Any]:
    """In the order of the requests: answers to requests of different sorts have none among each other."""
    if name == ADDS_UP:  # a sum over all tests
        for answer in answers:
            answer.infer_response.ClearField("raw_output_contents")
    return sorted(answers, key=lambda answer: str(answer.infer_response.id))


def _together(parts: Iterable[Answered]) -> Answered:
    separate = list(parts)
    return [answer for answers, _, _ in separate for answer in answers], separate[-1][1], separate[-1][2]


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize("name", CASES)
def test_what_triton_says(name: str, strict: bool, triton: EmbeddedTriton, tidegate: object, open_stream: Make) -> None:
    messages = CASES[name]

    def ask(server: object, asked: list[Any], metadata: Any = STRICT if strict else ()) -> Answered:
        answers, code, details = rest_of(open_stream(server, asked, metadata=metadata))
        return _comparable(name, answers), code, details

    # Triton 2.51 may abort when a stream that is to end with a model's error does, beside other requests mostly, and
    # one in a hundred times without any; nor does it survive a stream that mixes decoupled models with others.
    if strict and name == "the model raises":
        messages = [RAISES]
        (refused,), _, _ = ask(triton, messages, metadata=())
        expected: Answered = [], grpc.StatusCode.INTERNAL, refused.error_message
    elif name == "everything":
        expected = _together(ask(triton, [message]) for message in messages)
    else:
        expected = ask(triton, messages)
    assert ask(tidegate, messages) == expected
    raises = name in ("the model raises", "a step of an ensemble raises")
    assert (expected[1] is OK) == (not (strict and raises))
    assert triton.running


def test_answers_come_in_the_order_of_the_requests(tidegate: object, open_stream: Make) -> None:
    messages = (_request("echo", str(number), np.full((1, 2), number, np.float32)) for number in range(500))
    answers, code, _ = rest_of(open_stream(tidegate, messages))
    assert code is OK
    assert {answer.error_message for answer in answers} == {""}
    assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(500)]
    values = [np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0] for answer in answers]
    assert values == list(range(500))


def test_many_streams_at_once(tidegate: object, open_stream: Make) -> None:
    def one(stream: int) -> list[str]:
        names = [f"{stream}/{number}" for number in range(50)]
        answers, code, _ = rest_of(open_stream(tidegate, (_request("echo", name) for name in names)))
        assert code is OK
        return [answer.infer_response.id for answer in answers]

    with ThreadPoolExecutor(20) as pool:
        received = list(pool.map(one, range(20)))
    assert received == [[f"{stream}/{number}" for number in range(50)] for stream in range(20)]


def _executions(call: Make, triton: EmbeddedTriton, model: str) -> int:
    _, answer = call(triton, "ModelStatistics", service_pb2.ModelStatisticsRequest(name=model))
    (statistic,) = service_pb2.ModelStatisticsResponse.FromString(answer).model_stats
    return int(statistic.execution_count)


def test_requests_of_different_streams_share_a_batch(
    triton: EmbeddedTriton, tidegate: object, open_stream: Make, start_call: Make, call: Make, jam: Make
) -> None:
    before = _executions(call, triton, "gated") + _executions(call, triton, "echo")
    release = jam(tidegate)
    # Each stream proves by an answer from its Triton that what it sent before has arrived.
    under_way = [
        open_stream(tidegate, [_request("echo", f"{n}", n * ROW), _request("flat", "here", ROW[0])]) for n in range(3)
    ]
    assert [next(stream).infer_response.id for stream in under_way] == ["here"] * 3
    single = start_call(tidegate, "ModelInfer", _request("echo", "3", 3 * ROW))
    assert call(tidegate, "ServerLive", b"")[0] is OK
    release()
    for number, stream in enumerate(under_way):
        ((answer,), code, _) = rest_of(stream)
        assert code is OK
        assert answer.infer_response.id == str(number)
        assert answer.infer_response.raw_output_contents[0] == (number * ROW).tobytes()
    assert outcome(single)[0] is OK

    def executions() -> int:
        return _executions(call, triton, "gated") + _executions(call, triton, "echo")

    eventually(lambda: executions() >= before + 2, "Triton to count what it has answered")
    assert executions() == before + 2


@pytest.mark.parametrize("direct", [True, False], ids=["triton", "tidegate"])
def test_what_is_under_way_at_the_half_close_is_answered(
    direct: bool, gate: Any, triton: EmbeddedTriton, tidegate: object, open_stream: Make
) -> None:
    stream = open_stream(triton if direct else tidegate, [_request("gated", str(number)) for number in range(6)])
    eventually(gate.somebody_waits, "the model to run")
    gate.open()
    answers, code, _ = rest_of(stream)
    assert (code, len(answers)) == (OK, 6)
    if not direct:  # Triton itself keeps no order here
        assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(6)]


def test_a_deadline_that_passes_is_told_as_triton_tells_it(
    gate: Any, triton: EmbeddedTriton, start_tidegate: Make, open_stream: Make
) -> None:
    late = _request("patient", "late", FULL, timeout=1)
    ahead = open_stream(triton, [_request("patient", "ahead", FULL), _request("patient", "ahead", FULL), late])
    eventually(lambda: pending_at(triton, "patient") == 2, "one to run, and the others to wait at Triton")
    gate.open()  # it looks at its queue again when an instance is free
    (words,) = (answer for answer in rest_of(ahead)[0] if answer.infer_response.id == "late")
    assert words.error_message == "Request timeout expired"

    gate.shut()
    tidegate = start_tidegate([triton], policy="symphony")
    running = open_stream(tidegate, [_request("gated", "ahead", FULL)])
    eventually(gate.somebody_waits, "the model to run")
    in_queue = _request("patient", "late", FULL, timeout=20_000)
    assert rest_of(open_stream(tidegate, [in_queue])) == ([words], OK, "")
    ends: Answered = ([], grpc.StatusCode.UNAVAILABLE, words.error_message)
    assert rest_of(open_stream(tidegate, [in_queue], metadata=STRICT)) == ends
    gate.open()
    assert rest_of(running)[1] is OK
    assert tidegate.stop()["deadline_unreachable"] == 2


@pytest.mark.parametrize("metadata", [(), STRICT], ids=["in words", "by status"])
def test_a_stream_ends_at_its_own_deadline_and_says_no_more_than_triton(
    gate: Any, metadata: Any, triton: EmbeddedTriton, start_tidegate: Make, open_stream: Make
) -> None:
    """A request that cannot be answered by then has no answer of its own."""
    tidegate = start_tidegate([triton], policy="symphony")
    running = open_stream(tidegate, [_request("gated", "ahead", FULL)])
    eventually(gate.somebody_waits, "the model to run")
    ends: Answered = ([], grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    requests = [_request("patient", "late", FULL), _request("echo", "behind", FULL)]
    for server in (triton, tidegate):
        assert rest_of(open_stream(server, requests, timeout=1, metadata=metadata)) == ends
    gate.open()
    assert rest_of(running)[1] is OK


def test_an_error_that_ends_the_stream_ends_its_other_requests(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, open_stream: Make
) -> None:
    tidegate = serve_here([triton])
    blocker = open_stream(tidegate, [_request("gated", "ahead", FULL)])
    eventually(gate.somebody_waits, "the model to run")
    sent: queue.Queue[Any] = queue.Queue()
    sent.put(RAISES)
    for number in range(20):
        sent.put(_request("gated", str(number), FULL))
    sent.put(_request("repeater", "forwarded"))
    stream = open_stream(tidegate, iter(sent.get, None), metadata=STRICT)
    assert len([next(stream) for _ in range(3)]) == 3
    assert tidegate.engine.tally.accepted == 22
    gate.open()
    answers, code, details = rest_of(stream)
    assert answers == []
    assert code is grpc.StatusCode.INTERNAL
    assert "negative values are refused" in details
    assert rest_of(blocker)[1] is OK
    eventually(lambda: tidegate.engine.tally.ended == 22, "every request to have ended")
    sent.put(None)


def test_requests_of_a_stream_that_is_cancelled_leave(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, open_stream: Make
) -> None:
    tidegate = serve_here([triton])
    running = open_stream(tidegate, [_request("gated", "ahead", FULL)])
    eventually(gate.somebody_waits, "the model to run")
    sent: queue.Queue[Any] = queue.Queue()
    for number in range(10):
        sent.put(_request("gated", str(number)))
    sent.put(_request("repeater", "forwarded"))
    stream = open_stream(tidegate, iter(sent.get, None))
    assert {next(stream).infer_response.id for _ in range(3)} == {"forwarded"}
    assert tidegate.engine.queued == 10
    stream.cancel()
    eventually(lambda: tidegate.engine.queued == 0, "them to leave")
    assert tidegate.engine.tally.cancelled == 10
    gate.open()
    assert rest_of(running)[1] is OK
    eventually(lambda: tidegate.engine.tally.answered == 1, "the engine to hear of the answer")
    sent.put(None)


def test_a_streams_deadline_is_that_of_its_requests(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, open_stream: Make, start_overdue: Make
) -> None:
    tidegate = serve_here([triton])
    running = open_stream(tidegate, [_request("gated", "ahead", FULL)])
    eventually(gate.somebody_waits, "the model to run")
    late = [_request("gated", "late")]
    for queued in start_overdue(tidegate, start=partial(open_stream, tidegate, late)):
        answers, code, _ = rest_of(queued)
        assert (answers, code) == ([], grpc.StatusCode.DEADLINE_EXCEEDED)
    eventually(lambda: tidegate.engine.queued == 0, "it to leave")
    gate.open()
    assert rest_of(running)[1] is OK
    tally = tidegate.stop()
    assert (tally.answered, tally.cancelled) == (1, tally.accepted - 1)


def test_a_slow_reader_is_not_read_from(
    triton: EmbeddedTriton, serve_here: Make, open_stream: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, on_the_way, total = 20, 150, 600
    monkeypatch.setattr(streams, "MAX_UNDER_WAY", waiting)
    tidegate = serve_here([triton])
    large = np.ones((1, 1 << 16), np.float32)
    stream = open_stream(tidegate, (_request("echo", str(number), large) for number in range(total)), timeout=120)
    eventually(lambda: tidegate.engine.tally.answered >= waiting, "answers to wait for their reader")
    for received in range(total):
        assert next(stream).infer_response.id == str(received)
        # What sockets and HTTP/2 windows hold comes on top.
        assert tidegate.engine.tally.accepted <= received + waiting + on_the_way


def test_a_slow_reader_of_a_model_that_answers_often(
    triton: EmbeddedTriton, serve_here: Make, open_stream: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_UNDER_WAY", 2)
    tidegate = serve_here([triton])
    large = np.ones((1, 1 << 14), np.float32)
    names = [str(number) for number in range(40)]
    answers, code, _ = rest_of(open_stream(tidegate, (_request("repeater", name, large) for name in names)))
    assert code is OK
    assert sorted(answer.infer_response.id for answer in answers) == sorted(3 * names)


def test_a_stream_that_its_client_only_opens_and_closes(tidegate: object, open_stream: Make) -> None:
    def nothing() -> Iterator[Any]:
        yield from ()

    assert rest_of(open_stream(tidegate, nothing())) == ([], OK, "")


def test_what_a_decoupled_model_never_answers_is_not_remembered_for_ever() -> None:
    """Of a request no more than the statistics ask for, and not its message."""

    async def run() -> int:
        relay = StreamRelay(lambda _size: None, Mock(), "decoupled")
        message = bytearray(1000)
        for _ in range(2 * relays.MAX_UNANSWERED):
            relay.put((cast("bytes", message), PassedThrough("decoupled"), None))
        relay.put(None)
        sent = [message async for message in relay.messages()]
        assert len(sent) == 2 * relays.MAX_UNANSWERED
        assert len(relay._unanswered) == relays.MAX_UNANSWERED
        del sent
        return sys.getrefcount(message)

    assert asyncio.run(run()) <= 3
