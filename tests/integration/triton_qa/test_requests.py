"""Parameters, headers, queues and caches of models, as L0_parameters, L0_model_queue and L0_response_cache ask."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.integration.triton_qa.asking import Parameters, Served, message_of, over_grpc, over_http, parsed
from tests.proxy.fixtures.calls import outcome, rest_of
from tests.proxy.fixtures.gate import pending_at
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.array([[1.5]], np.float32)
PARAMETERS: dict[str, Parameters] = {
    "text": {"key1": "value1", "key2": "value2"},
    "numbers": {"key1": 1, "key2": 2},
    "fractions": {"key1": 123.123, "key2": 321.321},
    "mixed": {"key1": True, "key2": "value2", "key3": -7, "key4": 2**62},
    "reserved": {"triton_": True, "key2": "value2"},
    "none": {},
}
HEADERS = {
    "other_1": "value",
    "my_header_1": "my value 1",
    "my_header_2": 'a "quoted" text with a backslash\\ ',
    "my_header_3": "",
}


@pytest.mark.parametrize("with_headers", [False, True], ids=["", "headers"])
@pytest.mark.parametrize("model", ["tells", "ensemble_tells"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_headers(
    name: str, model: str, with_headers: bool, direct: Served, through: Served, call: Make, open_stream: Make
) -> None:
    message = message_of(model, {"INPUT0": ROW}, PARAMETERS[name], id="mine")
    headers = HEADERS if with_headers else {}
    metadata = tuple((key.replace("_", "-"), value) for key, value in headers.items())
    expected = over_grpc(call, direct, message, metadata=metadata)
    in_http = over_http(direct, message, **headers)
    in_stream = rest_of(open_stream(direct, [message, message], metadata=metadata))
    for _ in range(2):
        assert over_grpc(call, through, message, metadata=metadata) == expected
        assert over_http(through, message, **headers) == in_http
        assert rest_of(open_stream(through, [message, message], metadata=metadata)) == in_stream


def test_requests_with_unlike_parameters_at_once(direct: Served, through: Served, start_call: Make) -> None:
    """They are never merged into one that has the parameters of either."""
    messages = [
        message_of(model, {"INPUT0": ROW}, {"number": number % 4}, id=str(number))
        for number in range(20)
        for model in ("tells", "ensemble_tells")
    ]
    for server in (direct, through):
        calls = [start_call(server, "ModelInfer", message) for message in messages]
        for message, (code, answer) in zip(messages, map(outcome, calls), strict=True):
            assert code is grpc.StatusCode.OK, answer
            parsed = service_pb2.ModelInferResponse.FromString(answer)
            assert parsed.id == message.id
            number = message.parameters["number"].int64_param
            assert b'{"number": %d}' % number in parsed.raw_output_contents[0], parsed


@pytest.mark.parametrize("model", ["queue", "ensemble_queue"])
def test_a_full_queue_and_a_timeout_there(
    model: str, triton: EmbeddedTriton, direct: Served, through: Served, gate_file: Path, start_call: Make
) -> None:
    """A model whose batcher has a queue policy is left to its Triton."""
    entered = gate_file.with_name("entered")
    found = []
    for server in (direct, through):
        gate_file.unlink(missing_ok=True)
        entered.unlink(missing_ok=True)
        calls = [start_call(server, "ModelInfer", message_of(model, {"INPUT": ROW}))]
        eventually(entered.exists, "the model to run")
        while not calls[-1].done():  # until the server refuses one: the third request waits in the queue in each case
            hurried: Parameters = {"timeout": 1000} if len(calls) == 2 else {}
            calls.append(start_call(server, "ModelInfer", message_of(model, {"INPUT": ROW}, hurried)))
            eventually(
                lambda sent=calls: sent[-1].done() or pending_at(triton, "queue") == len(sent) - 1,
                "the request to wait, or to be refused",
            )
        gate_file.touch()
        found.append([parsed(*outcome(each)) for each in calls])
    assert found[1] == found[0]
    *answers, (refused, words) = found[0]
    assert refused is grpc.StatusCode.UNAVAILABLE
    assert "Exceeds maximum queue size" in words
    assert "Request timeout expired" in answers[2][1]
    assert [code for code, _ in answers].count(grpc.StatusCode.OK) == len(answers) - 1


CACHES = {"cached": "cached", "a cached step": "ensemble_of_cached"}
UNCACHED_VALUES = itertools.count(0.5)
"""Values that no other test sends: the cache stays."""


@pytest.mark.parametrize("model", CACHES.values(), ids=list(CACHES))
def test_the_second_of_two_equal_requests_is_answered_from_the_cache(
    model: str, direct: Served, through: Served, call: Make
) -> None:
    def caches(server: Served) -> Counter[str]:
        _, answer = call(server, "ModelStatistics", service_pb2.ModelStatisticsRequest())
        counts: Counter[str] = Counter()
        for each in service_pb2.ModelStatisticsResponse.FromString(answer).model_stats:
            counts[f"hits of {each.name}"] = each.inference_stats.cache_hit.count
            counts[f"misses of {each.name}"] = each.inference_stats.cache_miss.count
        return counts

    def twice(server: Served, value: float) -> tuple[list[Any], Counter[str]]:
        before, message = caches(server), message_of(model, {"INPUT0": np.array([[value]], np.float32)})
        answers = []
        for number in (1, 2):
            answers.append(over_grpc(call, server, message))
            eventually(lambda number=number: (caches(server) - before).total() >= number, "the cache to be counted")
        return answers, caches(server) - before

    for server in (direct, through):
        (first, second), counted = twice(server, next(UNCACHED_VALUES))
        assert first == second
        assert counted == {"misses of cached": 1, "hits of cached": 1}
