"""Whatever is not plainly schedulable goes to Triton as it is, and Triton's answer comes back as it is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually, unused_port
from tests.proxy.servers.http.conftest import fetch, request_body
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Alike = Callable[..., Any]
Body = Callable[..., bytes]
ECHO = "/v2/models/echo/infer"
DATA = {"data": [1]}
PLAIN = b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}]}'

ROUTES = [
    *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/health/live?verbose=1", "/v2/models/stats", "/v2/logging"),
    *("/v2/models/echo", "/v2/models/echo/ready", "/v2/models/echo/config", "/v2/models/echo/stats"),
    *("/v2/models/echo/versions/1", "/v2/models/echo/versions/1/ready", "/v2/models/echo/versions/1/config"),
    *(
        "/v2/models/echo/versions/9",
        "/v2/models/echo/versions/9/ready",
        "/v2/models/echo/versions/99999999999999999999",
    ),
    *("/v2/models/nope", "/v2/models/nope/ready", "/v2/models/nope/config", "/v2/models/nope/stats"),
    *("/v2/models/echo/trace/setting", "/v2/models/echo/versions/1/trace/setting", "/v2/trace/setting"),
    *("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status", "/v2/systemsharedmemory/region/none/status"),
    *("/v2/repository/index", "/v2/repository/models/echo/load", "/v2/models/echo/infer", "/v2/models/echo/generate"),
    *(
        "/",
        "/v2/",
        "/v2/nope",
        "/metrics",
        "/v1/models/echo",
        "/v2/models",
        "/v2/models/echo/nope",
        "/v2/models/stats/infer",
    ),
]
ODD_PATHS = [
    *("/v2/health/live/", "/v2/health/live;a=b", "/v2/models/a%20b/ready", "/v2/health/live%3Fa"),
    *("http://elsewhere/v2/health/live", "HTTP://elsewhere", '/v2/health/"<>{}|^`'),
    *("/v2/models/echo/versions/1x/ready", "/V2/health/live"),
]


@pytest.mark.parametrize("path", [*ROUTES, *ODD_PATHS])
def test_every_route_by_every_method(alike: Alike, path: str) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"):
        alike(method, path)


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/health/live", "/v2/models/stats", "/v2/models/echo", "/v2/models/echo/ready", "/v2/nope"]
)
def test_post_where_there_is_nothing_to_post(alike: Alike, path: str) -> None:
    alike("POST", path, b"{}")


MALFORMED: dict[str, bytes] = {
    "no JSON": b'{"inputs":',
    "something behind it": PLAIN + b" x",
    "a comma too much": PLAIN.replace(b"[1]}", b"[1,]}"),
    "no object": b"[1]",
    "no inputs": b"{}",
    "inputs null": b'{"inputs":null}',
    "inputs of something else": b'{"inputs":[1]}',
    "no name": PLAIN.replace(b'"name":"X",', b""),
    "a number for a name": PLAIN.replace(b'"X"', b"7"),
    "unknown input": PLAIN.replace(b'"X"', b'"Z"'),
    "the input twice": PLAIN.replace(b"}]", b'},{"name":"X","shape":[1,1],"datatype":"FP32","data":[2]}]'),
    "no datatype": PLAIN.replace(b'"datatype":"FP32",', b""),
    "unknown datatype": PLAIN.replace(b"FP32", b"FP31"),
    "another datatype": PLAIN.replace(b"FP32", b"INT32"),
    "FP16 as JSON": PLAIN.replace(b"FP32", b"FP16"),
    "no shape": PLAIN.replace(b'"shape":[1,1],', b""),
    "negative shape": PLAIN.replace(b"[1,1]", b"[1,-1]"),
    "shape of floats": PLAIN.replace(b"[1,1]", b"[1,1.0]"),
    "shape of booleans": PLAIN.replace(b"[1,1]", b"[true,1]"),
    "shape of strings": PLAIN.replace(b"[1,1]", b'["1",1]'),
    "rows only": PLAIN.replace(b"[1,1]", b"[1]"),
    "no rows": PLAIN.replace(b"[1,1]", b"[0,1]").replace(b"[1]", b"[]"),
    "too many rows": PLAIN.replace(b"[1,1]", b"[9,1]").replace(b"[1]", b"[1,2,3,4,5,6,7,8,9]"),
    "too few elements": PLAIN.replace(b"[1,1]", b"[1,2]"),
    "too many elements": PLAIN.replace(b"[1]", b"[1,2]"),
    "no data": PLAIN.replace(b',"data":[1]', b""),
    "data null": PLAIN.replace(b"[1]", b"null"),
    "data a number": PLAIN.replace(b"[1]", b"1"),
    "data of strings": PLAIN.replace(b"[1]", b'["1"]'),
    "data of booleans": PLAIN.replace(b"[1]", b"[true]"),
    "data of nulls": PLAIN.replace(b"[1]", b"[null]"),
    "data and binary": PLAIN.replace(b'"data"', b'"parameters":{"binary_data_size":4},"data"'),
    "binary without a header": PLAIN.replace(b'"data":[1]', b'"parameters":{"binary_data_size":4}'),
    "binary_data_size a string": PLAIN.replace(b'"data":[1]', b'"parameters":{"binary_data_size":"4"}'),
    "input parameters null": PLAIN.replace(b'"data"', b'"parameters":null,"data"'),
    "shared memory": PLAIN.replace(b'"data":[1]', b'"parameters":{"shared_memory_region":"r"}'),
    "a key twice": b'{"id":"first","id":"last",' + PLAIN[1:],
    "an input's key twice": PLAIN.replace(b'"data":[1]', b'"data":[1],"data":[2]'),
    "parameters null": b'{"parameters":null,' + PLAIN[1:],
    "parameters a list": b'{"parameters":[],' + PLAIN[1:],
    "parameter null": b'{"parameters":{"a":null},' + PLAIN[1:],
    "parameter an object": b'{"parameters":{"a":{}},' + PLAIN[1:],
    "reserved parameter": b'{"parameters":{"triton_x":1},' + PLAIN[1:],
    "priority negative": b'{"parameters":{"priority":-1},' + PLAIN[1:],
    "priority a float": b'{"parameters":{"priority":1.5},' + PLAIN[1:],
    "timeout a string": b'{"parameters":{"timeout":"1"},' + PLAIN[1:],
    "binary_data_output a number": b'{"parameters":{"binary_data_output":1},' + PLAIN[1:],
    "sequence": b'{"parameters":{"sequence_id":7,"sequence_start":true},' + PLAIN[1:],
    "sequence by name": b'{"parameters":{"sequence_id":"7","sequence_end":false},' + PLAIN[1:],
    "id a number": b'{"id":1,' + PLAIN[1:],
    "id null": b'{"id":null,' + PLAIN[1:],
    "id with a NUL": b'{"id":"a\\u0000b",' + PLAIN[1:],
    "id no UTF-8": b'{"id":"\xff",' + PLAIN[1:],
    "id half a surrogate": b'{"id":"\\ud800",' + PLAIN[1:],
    "outputs null": b'{"outputs":null,' + PLAIN[1:],
    "output without a name": b'{"outputs":[{}],' + PLAIN[1:],
    "unknown output": b'{"outputs":[{"name":"Z"}],' + PLAIN[1:],
    "an output twice": b'{"outputs":[{"name":"Y"},{"name":"Y"}],' + PLAIN[1:],
    "binary_data a number": b'{"outputs":[{"name":"Y","parameters":{"binary_data":1}}],' + PLAIN[1:],
    "classification": b'{"outputs":[{"name":"Y","parameters":{"classification":1}}],' + PLAIN[1:],
    "output in shared memory": b'{"outputs":[{"name":"Y","parameters":{"shared_memory_region":"r"}}],' + PLAIN[1:],
    "byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "deep": b"[" * 500,
}  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_requests(alike: Alike, body: bytes) -> None:
    alike("POST", ECHO, body)


@pytest.mark.parametrize("shape", [[1, 2**62], [2**32, 2**32], [8, 2**30]], ids=str)
def test_shapes_that_triton_would_not_survive(alike: Alike, http_server: Any, shape: list[int]) -> None:
    refused = fetch(http_server.http_address, "POST", ECHO, request_body({"data": [1], "shape": shape}))
    assert refused == alike("POST", ECHO, request_body({"data": [1], "shape": [1, 2]}))


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"inputs":['])
def test_depths_that_triton_would_not_survive(http_server: Any, opening: bytes) -> None:
    refused = fetch(http_server.http_address, "POST", ECHO, opening * 300_000)
    assert refused.status == 400
    assert json.loads(refused.body)["error"].endswith("it is nested too deeply")
    assert fetch(http_server.http_address, "GET", "/v2/health/live").status == 200


IGNORED: dict[str, bytes] = {
    "unknown keys": b'{"extra":{"a":1,"b":[{}]},' + PLAIN[1:],
    "unknown parameters of an input": PLAIN.replace(b'"data"', b'"parameters":{"any":1},"data"'),
    "unknown parameters of an output": b'{"outputs":[{"name":"Y","parameters":{"any":{}}}],' + PLAIN[1:],
    "white space": PLAIN.replace(b",", b" ,\r\n\t"),
}


@pytest.mark.parametrize("body", IGNORED.values(), ids=IGNORED)
def test_what_triton_ignores_hinders_no_scheduling(alike: Alike, body: bytes) -> None:
    assert alike("POST", ECHO, body, scheduled=True).status == 200


@pytest.mark.parametrize("length", ["-1", "x", "1x", "+1", "", "70", "99999999999999999999", "9" * 5000, "0x10"])
def test_odd_lengths_of_the_json(alike: Alike, length: str) -> None:
    alike("POST", ECHO, PLAIN, {"Inference-Header-Content-Length": length})


@pytest.mark.parametrize("size", ["3", "5", "8"])
def test_binary_data_of_another_size(alike: Alike, size: str) -> None:
    head = request_body({"parameters": {"binary_data_size": int(size)}})
    alike("POST", ECHO, head + bytes(4), {"Inference-Header-Content-Length": str(len(head))})


@pytest.mark.parametrize("body", [b"abc", bytes(6)])
def test_raw_requests_of_an_impossible_size(alike: Alike, body: bytes) -> None:
    alike("POST", ECHO, body, {"Inference-Header-Content-Length": "0"})


def test_raw_requests_of_models_that_take_none(alike: Alike) -> None:
    alike("POST", "/v2/models/all/infer", bytes(4), {"Inference-Header-Content-Length": "0"})
    alike("POST", "/v2/models/fails/infer", bytes(4), {"Inference-Header-Content-Length": "0"})


@pytest.mark.parametrize("encoding", ["br", "GZIP", "gzip, deflate", "gzip"])
def test_bodies_that_are_not_compressed_as_they_say(alike: Alike, encoding: str) -> None:
    alike("POST", ECHO, PLAIN, {"Content-Encoding": encoding})


@pytest.mark.parametrize(
    "model", ["nope", "flat", "streamer", "echo/versions/2", "echo/versions/99999999999999999999", "ech%3F"]
)
def test_models_that_are_not_scheduled(alike: Alike, model: str) -> None:
    alike("POST", f"/v2/models/{model}/infer", PLAIN.replace(b"[1,1]", b"[1]"))


def test_generate(alike: Alike, held_back: Path) -> None:
    held_back.touch()
    answer = alike("POST", "/v2/models/word/generate", b'{"X":"hello"}')
    assert json.loads(answer.body)["Y"] == "hello"
    answer = alike("POST", "/v2/models/word/generate_stream", b'{"X":"hello"}')
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"
    answer = alike("POST", "/v2/models/streamer/generate_stream", b'{"X":"hello"}')
    assert answer.body.count(b"data: ") == 2
    alike("POST", "/v2/models/streamer/generate", b'{"X":"hello"}')
    alike("POST", "/v2/models/word/generate", b"{")
    alike("POST", "/v2/models/word/generate_stream", b'{"Z":1}')


def test_repository(alike: Alike) -> None:
    for body in (None, b"{}", b'{"ready":true}', b'{"ready":1}', b"{"):
        alike("POST", "/v2/repository/index", body)
    alike("POST", "/v2/repository/mine/index")
    alike("POST", "/v2/repository/models/flat/unload")
    alike("POST", "/v2/repository/models/flat/unload", b'{"parameters":{"unload_dependents":1}}')
    alike("POST", "/v2/repository/models/flat/load")
    alike("POST", "/v2/repository/models/nope/load")
    alike("POST", "/v2/repository/mine/models/flat/load")
    alike("POST", "/v2/repository/models/flat/load", b'{"parameters":{"config":"{"}}')


def test_settings(alike: Alike) -> None:
    for path in ("/v2/trace/setting", "/v2/models/echo/trace/setting"):
        for body in (b'{"trace_rate":"7"}', b'{"trace_rate":null}', b'{"trace_rate":7}', b"{", None):
            alike("POST", path, body)
    for body in (b'{"log_verbose_level":0}', b'{"log_info":1}', b'{"nope":1}', b"{", None):
        alike("POST", "/v2/logging", body)


def test_shared_memory(alike: Alike, triton: EmbeddedTriton) -> None:
    region = "/v2/systemsharedmemory/region/mine"
    for body in (b"{", b"{}", b'{"key":"/nope","byte_size":4}', b'{"key":7,"byte_size":4}', None):
        alike("POST", region + "/register", body)
    alike("POST", "/v2/systemsharedmemory/register", b"{}")
    alike("POST", region + "/unregister")
    alike("POST", "/v2/systemsharedmemory/unregister")
    alike("POST", "/v2/cudasharedmemory/region/mine/register", b'{"raw_handle":{"b64":""},"byte_size":4,"device_id":0}')
    alike("POST", "/v2/cudasharedmemory/unregister")
    shared = Path(f"/dev/shm/test_tidegate_{triton.pid}")
    shared.write_bytes(bytes(4))
    try:
        register = json.dumps({"key": f"/{shared.name}", "byte_size": 4}).encode()
        fetch(triton.http_address, "POST", region + "/register", register)
        parameters = b'"parameters":{"shared_memory_region":"mine","shared_memory_byte_size":4}'
        assert alike("POST", ECHO, PLAIN.replace(b'"data":[1]', parameters)).status == 200
        alike("GET", "/v2/systemsharedmemory/status")
        alike("POST", region + "/register", register)
    finally:
        fetch(triton.http_address, "POST", region + "/unregister")
        shared.unlink()


def test_statistics_move_with_the_requests(alike: Alike, http_server: Any) -> None:
    def count() -> int:
        answer = fetch(http_server.http_address, "GET", "/v2/models/three/stats")
        return int(json.loads(answer.body)["model_stats"][0]["inference_stats"]["success"]["count"])

    before = count()
    body = PLAIN.replace(b"[1,1]", b"[1,3]").replace(b"[1]", b"[1,2,3]")
    alike("POST", "/v2/models/three/infer", body, scheduled=True)
    # One direct, one through the http_server. Triton counts a request after it has answered it.
    eventually(lambda: count() == before + 2, "both requests to be counted")


def test_an_unready_triton(alike: Alike, start_http_server: Callable[..., Any]) -> None:
    http_server = start_http_server([f"http://127.0.0.1:{unused_port()}"], None, {}.get)
    answer = fetch(http_server.http_address, "GET", "/v2/health/ready")
    assert answer.status == 503
    assert "cannot be reached" in json.loads(answer.body)["error"]
