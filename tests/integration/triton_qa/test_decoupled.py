"""Models that answer any number of times, as Triton's L0_decoupled and L0_iterative_sequence ask of them."""

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from tests.examples import few
from tests.integration.triton_qa.asking import Served, message_of, over_grpc, over_http, post
from tests.proxy.fixtures.calls import rest_of

Make = Callable[..., Any]
MODELS = few(["repeat", "sequence_repeat", "simple_repeat", "repeat_square", "nested_square"])
WITH_A_STEP_BEHIND = {"sequence_repeat", "repeat_square", "nested_square"}
"""Ensembles whose last step may end before or after Triton knows that its first one has ended."""
SHORT_US, LONG_US = 500, 8_000
"""Times that a model holds a request: less, and more, than its responses take."""


def _request(model: str, responses: int, *, wait_us: int = SHORT_US, name: str = "", final: bool = False) -> Any:
    arrays = {
        "IN": np.arange(2, 2 + responses, dtype=np.int32)[None],
        "DELAY": np.full((1, responses), 1000, np.uint32),
        "WAIT": np.array([[wait_us]], np.uint32),
    }
    return message_of(model, arrays, {"triton_enable_empty_final_response": True} if final else {}, id=name)


def _by_request(answers: list[Any], *, has_final: bool = True) -> dict[str, list[Any]]:
    """Answers to several requests have no order among each other.

    `has_final`: whether Triton itself says the same each time with which response a request ends.
    """
    found: dict[str, list[Any]] = {}
    for answer in answers:
        response = answer.infer_response
        if not has_final and "triton_final_response" in response.parameters:
            del response.parameters["triton_final_response"]
        if has_final or response.outputs:
            found.setdefault(response.id, []).append(answer)
    return dict(sorted(found.items()))


@pytest.mark.parametrize("final", [False, True], ids=["", "with a final response"])
@pytest.mark.parametrize("wait_us", [SHORT_US, LONG_US], ids=["released early", "released late"])
@pytest.mark.parametrize("responses", [0, 1, 5])
@pytest.mark.parametrize("model", MODELS)
def test_responses_of_one_request_and_of_five(
    model: str, responses: int, wait_us: int, final: bool, direct: Served, through: Served, open_stream: Make
) -> None:
    for requests in (1, 5):
        messages = [
            _request(model, responses, wait_us=wait_us, name=str(number), final=final) for number in range(requests)
        ]
        (expected, *end), (answers, *ended) = (rest_of(open_stream(server, messages)) for server in (direct, through))
        assert ended == end == [grpc.StatusCode.OK, ""]
        has_final = model not in WITH_A_STEP_BEHIND
        assert _by_request(answers, has_final=has_final) == _by_request(expected, has_final=has_final)


WRONG = {
    "a wrong shape": message_of("repeat", {"IN": np.ones((1, 1, 1), np.int32)}, id="mine"),
    "missing inputs": message_of("repeat", {"IN": np.ones((1, 1), np.int32)}, id="mine"),
    "a wrong type": message_of("repeat", {"IN": np.ones((1, 1), np.float32)}),
    "an unknown output": message_of("square", {"IN": np.ones((1, 1), np.int32)}, wanted=("NOPE",)),
    "two rows": message_of("square", {"IN": np.ones((2, 1), np.int32)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests(name: str, direct: Served, through: Served, open_stream: Make) -> None:
    for metadata in ((), (("triton_grpc_error", "true"),)):
        expected = rest_of(open_stream(direct, [WRONG[name]], metadata=metadata))
        assert rest_of(open_stream(through, [WRONG[name]], metadata=metadata)) == expected


@pytest.mark.parametrize("model", MODELS)
def test_single_calls_are_refused(model: str, direct: Served, through: Served, call: Make) -> None:
    message = _request(model, 1)
    assert over_grpc(call, through, message) == over_grpc(call, direct, message)
    assert over_http(through, message) == over_http(direct, message)


GENERATED = {
    "none": b'{"IN": [], "DELAY": [], "WAIT": 1}',
    "one": b'{"IN": [4], "DELAY": [1], "WAIT": 1}',
    "several": b'{"IN": [4, 5, 6], "DELAY": [1, 1, 1], "WAIT": 1}',
    "an id": b'{"id": "mine", "IN": [4, 5], "DELAY": [1, 1], "WAIT": 1}',
    "an input is missing": b'{"IN": [4], "DELAY": [1]}',
    "no JSON": b"{",
}


@pytest.mark.parametrize("model", ["repeat", "simple_repeat"])
@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("method", ["generate", "generate_stream"])
def test_generate(method: str, name: str, model: str, direct: Served, through: Served) -> None:
    path = f"/v2/models/{model}/{method}"
    expected = post(direct, path, GENERATED[name])
    assert post(through, path, GENERATED[name]) == expected


ITERATIVE = {
    "counts down": [message_of("iterative", {"INPUT": np.array([[3]], np.int32)}, id="mine")],
    "four of them": [message_of("iterative", {"INPUT": np.array([[2]], np.int32)}, id=str(n)) for n in range(4)],
}


@pytest.mark.parametrize("name", ITERATIVE)
def test_iterative_sequences(name: str, direct: Served, through: Served, open_stream: Make) -> None:
    (expected, *end), (answers, *ended) = (
        rest_of(open_stream(server, ITERATIVE[name])) for server in (direct, through)
    )
    assert ended == end
    assert _by_request(answers) == _by_request(expected)


def test_iterative_sequences_over_http(direct: Served, through: Served) -> None:
    path, body = "/v2/models/iterative/generate_stream", b'{"INPUT": 2}'
    assert post(through, path, body) == post(direct, path, body)
