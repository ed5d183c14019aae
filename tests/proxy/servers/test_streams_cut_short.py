"""A Triton that ends a stream, and well, before all is answered: whoever is not answered is told so, in its turn."""

import asyncio
import queue
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.proxy.fixtures.calls import request_of, rest_of
from tests.proxy.fixtures.fake_answers import ROW, echo
from tests.proxy.fixtures.fake_triton import FakeTriton
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.service.stream_passthrough import BypassedStreamRequest, StreamRelay
from tidegate_proxy.tritons.backend import Backend

Make = Callable[..., Any]
Asked = Iterator[Any]
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
STRICT = (("triton_grpc_error", "true"),)
PASSES: dict[str, dict[str, Any]] = {
    "shadow": {"shadow": True},
    "consent": {"models": {"echo": {"scheduling": "bypass"}}},
}
"""What lets the model's requests pass, whose answers leave in the order of the requests or as they come."""


def _answer(request: Any) -> bytes:
    answer = service_pb2.ModelInferResponse.FromString(echo(request))
    return bytes(service_pb2.ModelStreamInferResponse(infer_response=answer).SerializeToString())


def _answers_two_of_five(asked: Asked) -> Iterator[bytes]:
    requests = list(islice(asked, 5))
    yield from map(_answer, requests[:2])


def _ignores_the_last_two(asked: Asked) -> Iterator[bytes]:
    requests = list(asked)
    yield from map(_answer, requests[:-2])


def _words(address: str) -> str:
    return f"Triton at {address} ended the stream early"


def _in_order(answers: list[Any]) -> list[tuple[str, str]]:
    return [(answer.infer_response.id, answer.error_message) for answer in answers]


@pytest.fixture
def endless() -> Iterator[Iterator[Any]]:
    """Five requests of a client that does not say that there are no more."""
    sent: queue.Queue[Any] = queue.Queue()
    for number in range(5):
        sent.put(request_of("echo", {"X": ROW}, id=str(number)))
    yield iter(sent.get, None)
    sent.put(None)


def test_each_request_without_an_answer_is_told(start_fake: Make, serve_here: Make, open_stream: Make) -> None:
    fake = start_fake(echo, _ignores_the_last_two)
    asked = [request_of("echo", {"X": ROW}, id=str(number)) for number in range(5)]
    proxy = serve_here([fake], shadow=True)
    answers, code, _ = rest_of(open_stream(proxy, asked))
    assert code is OK
    assert _in_order(answers) == [*((str(n), "") for n in range(3)), *((str(n), _words(fake.address)) for n in (3, 4))]
    assert answers[-1].infer_response.model_name == "echo"
    assert answers[-1].infer_response.parameters["triton_final_response"].bool_param


def _has_no_batches(fake: FakeTriton, *, decoupled: bool = False) -> None:
    config = service_pb2.ModelConfigResponse.FromString(fake.answers["ModelConfig"])
    config.config.max_batch_size = 0
    config.config.model_transaction_policy.decoupled = decoupled
    config.config.parameters.clear()
    fake.answers["ModelConfig"] = config.SerializeToString()


def test_so_is_one_that_had_a_slot(start_fake: Make, serve_here: Make, open_stream: Make) -> None:
    fake = start_fake(echo, lambda asked: iter([_answer(request) for request in asked if request.id == "0"]))
    _has_no_batches(fake)
    asked = [request_of("echo", {"X": ROW[0]}, id=str(number)) for number in range(2)]
    answers, code, _ = rest_of(open_stream(serve_here([fake], models={"echo": {"max_concurrency": 2}}), asked))
    assert (_in_order(answers), code) == ([("0", ""), ("1", _words(fake.address))], OK)


def test_one_with_a_response_is_told_before_a_silent_triton_is_given_up(
    start_fake: Make, serve_here: Make, open_stream: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers_once_and_breaks(asked: Asked) -> Iterator[bytes]:
        yield _answer(next(asked))
        raise ConnectionError("it breaks")

    async def is_silent(_: Backend) -> bool:
        await asyncio.Event().wait()
        return False

    fake = start_fake(echo, answers_once_and_breaks)
    _has_no_batches(fake, decoupled=True)
    proxy = serve_here([fake], models={"echo": {"max_concurrency": 1}})
    monkeypatch.setattr(Backend, "is_live", is_silent)
    answers, code, details = rest_of(open_stream(proxy, [request_of("echo", {"X": ROW[0]}, id="0")], metadata=STRICT))
    assert _in_order(answers) == [("0", "")]
    assert (code, details) == (UNAVAILABLE, "it breaks")
    assert len(proxy.serving.driver.running) == 1, "nobody else gets the slot before"


def test_so_is_each_of_a_client_that_was_not_done(
    start_fake: Make, serve_here: Make, open_stream: Make, endless: Iterator[Any]
) -> None:
    fake = start_fake(echo, _answers_two_of_five)
    answers, code, details = rest_of(open_stream(serve_here([fake], shadow=True), endless))
    assert (code, details) == (UNAVAILABLE, _words(fake.address)), "it may have sent more"
    assert _in_order(answers) == [("0", ""), ("1", ""), *((str(n), _words(fake.address)) for n in (2, 3, 4))]


@pytest.mark.parametrize("way", PASSES)
def test_who_wants_a_status_gets_one(
    way: str, start_fake: Make, serve_here: Make, open_stream: Make, endless: Iterator[Any]
) -> None:
    fake = start_fake(echo, _answers_two_of_five)
    answers, code, details = rest_of(open_stream(serve_here([fake], **PASSES[way]), endless, metadata=STRICT))
    assert _in_order(answers) == [("0", ""), ("1", "")]
    assert (code, details) == (UNAVAILABLE, _words(fake.address))


def test_where_one_request_may_have_any_number_of_answers_the_stream_says_so(
    start_fake: Make, serve_here: Make, open_stream: Make, endless: Iterator[Any]
) -> None:
    fake = start_fake(echo, _answers_two_of_five)
    answers, code, details = rest_of(open_stream(serve_here([fake], **PASSES["consent"]), endless))
    assert _in_order(answers) == [("0", ""), ("1", "")]
    assert (code, details) == (UNAVAILABLE, _words(fake.address))


def test_what_has_no_answer_at_the_end_of_its_requests_is_not_made_one(
    start_fake: Make, serve_here: Make, open_stream: Make
) -> None:
    fake = start_fake(echo, _ignores_the_last_two)
    asked = [request_of("echo", {"X": ROW}, id=str(number)) for number in range(5)]
    answers, code, _ = rest_of(open_stream(serve_here([fake], **PASSES["consent"]), asked))
    assert code is OK
    assert _in_order(answers) == [(str(number), "") for number in range(3)]


async def test_what_had_not_left_for_the_triton_is_unanswered_whatever_its_model() -> None:
    """What is on its way to a model that may answer any number of times is not, but cuts the stream short."""
    relay = StreamRelay(lambda _size: None, Mock(), "several")
    one, several = PassedThrough("one"), PassedThrough("several")
    passing = BypassedStreamRequest(one, lambda: None)
    relay.put((b"a", several, None))
    relay.put((b"b", one, passing))
    relay.put((b"c", several, None))
    messages = relay.messages()
    assert [await anext(messages), await anext(messages)] == [b"a", b"b"]
    assert relay.unanswered == [(one, passing), (several, None)]
    assert relay.is_cut_short
    relay.put(None)
    assert [message async for message in messages] == [b"c"]
    assert relay.unanswered == [(one, passing)]
    assert not relay.is_cut_short
