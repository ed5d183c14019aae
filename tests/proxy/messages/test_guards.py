"""Guards: what would end a Triton, or a model of it, does not reach it, and clients are answered all the same."""

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as messages

from tests.proxy.fixtures.calls import request_of, rest_of
from tests.proxy.fixtures.models import add_model
from tests.proxy.servers.test_isolation import asking
from tidegate_proxy.messages import guards
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
STRICT = (("triton_grpc_error", "true"),)
ROW = np.ones((1, 2), np.float32)


DEPTHS = {
    b"[" * 1000 + b"]" * 1000: False,
    b"[" * 1001: True,
    b'{"a":' * 1001: True,
    b'{"a":[' * 500 + b"[": True,
    b"[]" * 5000: False,
    b'"' + b"[" * 5000 + b'"': False,
    b'"\\"' + b"[" * 5000 + b'"': False,
    b'"\\\\"' + b"[" * 1001: True,
    b'["]]]]"' + b',["]"' * 1000: True,
}
"""Texts, with whether they are nested too deeply."""


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_depth_of_json_in_pieces(size: int) -> None:
    for content, too_deep in DEPTHS.items():
        depth = guards.JsonDepth()
        found = [depth.exceeds(content[start : start + size]) for start in range(0, len(content), size)]
        assert any(found) == too_deep, content[:9]


@pytest.mark.parametrize(
    ("shape", "is_sent"),
    [
        ((1, 2), True),
        ((), True),
        ((0, 1 << 50), True),
        ((-1, 4), True),
        ((1, 1 << 62), False),
        ((4, 1 << 60), False),
        ((0, 1 << 62), False),
        ((-1, -(1 << 62)), False),
        ((1 << 31, 1 << 31, 4), False),
    ],
)
def test_shapes_whose_bytes_wrap_around(shape: tuple[int, ...], *, is_sent: bool) -> None:
    assert (guards.shape_problem([("X", shape)]) == "") == is_sent


def _failed(words: str, model: str = "m") -> bytes:
    answer = messages.ModelStreamInferResponse(error_message=words)
    answer.infer_response.model_name = model
    serialized: bytes = answer.SerializeToString()
    return serialized


def test_the_status_of_a_failed_answer() -> None:
    assert guards.failed_answer(_failed("the model raised")) == (grpc.StatusCode.INTERNAL, "the model raised")
    late = guards.failed_answer(_failed("[request id: 1] Request timeout expired"))
    assert late == (grpc.StatusCode.UNAVAILABLE, "[request id: 1] Request timeout expired")
    assert guards.failed_answer(_failed("refused on its arrival", model="")) is None
    assert guards.failed_answer(messages.ModelStreamInferResponse().SerializeToString()) is None


@pytest.fixture(scope="module")
def fragile(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton for these tests alone, which one of them may end: `picky` is not scheduled, and refuses negatives."""
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "picky", "max_batch_size: 0", refuses_negative=1)
    started: EmbeddedTriton = start_triton([repository])
    return started


@pytest.fixture
def proxy(fragile: EmbeddedTriton, serve_here: Make) -> Any:
    """A Tidegate before it."""
    return serve_here(
        [],
        tritons=[{"grpc": fragile.grpc_address, "http": fragile.http_address}],
        listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
    )


def test_streams_that_want_a_status_get_it_and_triton_lives(
    fragile: EmbeddedTriton, proxy: Any, open_stream: Make
) -> None:
    bad = request_of("picky", {"X": -ROW[0]})
    for _ in range(100):  # the first ended it after some fifty
        answers, code, details = rest_of(open_stream(proxy, [bad, bad], metadata=STRICT))
        assert (answers, code, "negative" in details) == ([], grpc.StatusCode.INTERNAL, True), details
    answers, code, _ = rest_of(open_stream(proxy, [request_of("picky", {"X": ROW[0]}), bad], metadata=STRICT))
    assert (len(answers), code) == (1, grpc.StatusCode.INTERNAL)
    assert fragile.running


def test_a_triton_is_told_neither_the_key_nor_the_deadline_of_a_stream(
    start_fake: Make, serve_here: Make, open_stream: Make
) -> None:
    fake = start_fake(lambda _request, _context: b"", stream=lambda _requests: iter(()))
    rest_of(open_stream(serve_here([fake]), [request_of("nope", {"X": ROW})], metadata=(*STRICT, ("x-mine", "1"))))
    metadata, remaining_s = fake.streams[-1]  # the first is Tidegate's own
    assert metadata["x-mine"] == "1"
    assert "triton_grpc_error" not in metadata
    assert remaining_s is None or remaining_s > 1e6


def test_shapes_that_end_a_model(fragile: EmbeddedTriton, proxy: Any, open_stream: Make, call: Make) -> None:
    message = messages.ModelInferRequest(model_name="picky", id="mine")
    message.inputs.add(name="X", datatype="FP32", shape=[1 << 62])
    message.raw_input_contents.append(b"")
    code, words = call(proxy, "ModelInfer", message)
    assert (code, "more bytes than can be counted" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True), words
    answers, code, _ = rest_of(open_stream(proxy, [message]))
    assert (code, answers[0].infer_response.id) == (grpc.StatusCode.OK, "mine")
    assert "more bytes than can be counted" in answers[0].error_message
    with asking(proxy) as ask:
        for key in (b"shape", b"sh\\u0061pe"):
            tensor = b'{"name":"X","datatype":"FP32","%b": [ 4611686018427387904 ],"data":[]}' % key
            status, body = ask("POST", "/v2/models/picky/infer", b'{"inputs":[%b]}' % tensor)
            assert (status, b"more bytes than can be counted" in body) == (400, True), body
        good = {"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}
        assert ask("POST", "/v2/models/picky/infer", json.dumps({"inputs": [good]}))[0] == 200


def test_deeply_nested_json_reaches_no_triton(fragile: EmbeddedTriton, proxy: Any) -> None:
    with asking(proxy) as ask:
        for path, body in product(
            (
                "/v2/models/picky/generate",
                "/v2/models/picky/generate_stream",
                "/v2/repository/models/picky/load",
                "/v2/repository/index",
                "/v2/logging",
                "/v2/trace/setting",
                "/v2/models/picky/trace/setting",
                "/v2/systemsharedmemory/region/a/register",
                "/v2/nope",
            ),
            (b"[" * 1_000_000, b'{"a":' * 400_000),
        ):
            status, answer = ask("POST", path, body)
            assert (status, b"nested too deeply" in answer) == (400, True), (path, answer)
    assert fragile.running
