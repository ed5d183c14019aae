"""What Tidegate, or Triton's Python backend, has in shared memory is for no client to read, overwrite or take away."""

import gzip
import http.client
import json
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import InferenceServerException, shared_memory

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of, rest_of
from tests.proxy.fixtures.clients import tensors
from tidegate_proxy.servers.http.screening import RequestScreen
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.shared_memory import REGION_PREFIX

FLOATS = 50_000
"""Of a request that is shared: 200 KB."""
LARGE = np.ones((1, FLOATS), np.float32)
PYTHONS = "triton_python_backend_shm_region_"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
MODELS = ["echo", "flat", "nope"]
"""One that is scheduled, one that is not, and none."""


def serve(serve_here: Callable[..., Any], triton: EmbeddedTriton, **options: object) -> Any:
    return serve_here(
        [],
        tritons=[{"grpc": triton.grpc_address, "http": triton.http_address}],
        listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
        **options,
    )


@pytest.fixture
def proxy(triton: EmbeddedTriton, serve_here: Callable[..., Any], connect: Callable[..., Any]) -> Any:
    """A Tidegate that shares a region with its Triton."""
    proxy = serve(serve_here, triton)
    client = connect(proxy)

    def shares() -> bool:
        client.infer("echo", tensors({"X": LARGE}))
        return bool(own(triton, connect))

    eventually(shares, "a region to be made")
    return proxy


@pytest.fixture
def ask(proxy: Any) -> Iterator[Callable[..., tuple[int, bytes]]]:
    """`ask("POST", path, body, {header: value})`: status and body of its answer over HTTP."""
    with asking(proxy) as answer:
        yield answer


class asking:
    """Of the HTTP service of a proxy."""

    def __init__(self, proxy: Any) -> None:
        self._connection = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)

    def __enter__(self) -> Callable[..., tuple[int, bytes]]:
        return self._ask

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: Any = None, headers: Any = None, **how: Any) -> tuple[int, bytes]:
        self._connection.request(method, path, body, headers or {}, **how)
        with self._connection.getresponse() as response:
            return response.status, response.read()


def own(triton: EmbeddedTriton, connect: Callable[..., Any]) -> list[str]:
    """The names of what Tidegates and the Triton share; Triton lists them in whatever order its map has."""
    return sorted(
        name for name in connect(triton).get_system_shared_memory_status().regions if name.startswith(REGION_PREFIX)
    )


def request_on(region: str, model: str = "echo", *, output: bool = False, **fields: Any) -> Any:
    """Its input is in the region, or its output is to go there."""
    message = messages.ModelInferRequest(model_name=model, **fields)
    message.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    tensor = message.inputs[0]
    if output:
        message.raw_input_contents.append(bytes(4))
        tensor = message.outputs.add(name="Y")
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = 4
    return message


def json_on(region: str, *, output: bool = False, padding: int = 0) -> bytes:
    parameters = {"parameters": {"shared_memory_region": region, "shared_memory_byte_size": 4}}
    given = {"name": "X", "datatype": "FP32", "shape": [1, 1]}
    outputs = {"outputs": [{"name": "Y", **parameters}]} if output else {}
    inputs = [{**given, "data": [1]} if output else {**given, **parameters}]
    return json.dumps({"id": "x" * padding, "inputs": inputs, **outputs}).encode()


def escaped(text: bytes, word: str) -> bytes:
    """The same JSON, the word written in another way."""
    return text.replace(word.encode(), "".join(f"\\u{ord(letter):04X}" for letter in word).encode())


def with_group(message: Any) -> bytes:
    """What some parsers of protobuf do not read, and Triton's does: an unknown group, field 100."""
    serialized: bytes = message.SerializeToString()
    return serialized + b"\xa3\x06\xa4\x06"


def test_regions_have_names_that_no_client_can_guess(
    proxy: object, triton: EmbeddedTriton, connect: Callable[..., Any]
) -> None:
    names = own(triton, connect)
    assert names
    assert all(re.fullmatch(rf"{REGION_PREFIX}[0-9a-f]{{16}}-[0-9a-f]{{32}}", name) for name in names)


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_no_request_names_a_region_that_is_not_for_clients(
    model: str,
    output: bool,
    proxy: object,
    triton: EmbeddedTriton,
    connect: Callable[..., Any],
    call: Callable[..., Any],
    ask: Callable[..., tuple[int, bytes]],
) -> None:
    for region in (*own(triton, connect), REGION_PREFIX + "x", PYTHONS + "1", "tidegate_0123_1"):
        message = request_on(region, model, output=output)
        for written in (message, with_group(message)):
            code, words = call(proxy, "ModelInfer", written)
            assert (code, "reserved prefix" in words) == (INVALID, True), words
        path, text = f"/v2/models/{model}/infer", json_on(region, output=output)
        twice = text.replace(b'"shared_memory_region"', b'"shared_memory_region": "mine", "shared_memory_region"')
        no_utf8 = text.replace(b'"id": ""', b'"id": "\xff"')
        for body in (text, twice, no_utf8, escaped(text, "region"), escaped(text, region[:9]), escaped(text, "e")):
            assert_refused(ask("POST", path, body))
            binary = {"Inference-Header-Content-Length": str(len(body))}
            assert_refused(ask("POST", path, body + bytes(8), binary))
            assert_refused(ask("POST", path, gzip.compress(body), {"Content-Encoding": "gzip"}))
            assert_refused(ask("POST", path, zlib.compress(body), {"Content-Encoding": "deflate"}))
            pieces = iter([body[:50], body[50:]])
            assert_refused(ask("POST", path, pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True))


@pytest.mark.parametrize("model", MODELS)
def test_a_client_cannot_have_the_header_dropped_that_says_how_far_to_look(
    model: str, ask: Callable[..., tuple[int, bytes]]
) -> None:
    """Without it the Triton would read as JSON what nobody has looked at."""
    short = {"Inference-Header-Content-Length": "2"}
    path, body = f"/v2/models/{model}/infer", json_on(REGION_PREFIX + "x")
    answer = ask("POST", path, body, short)
    assert ask("POST", path, body, {**short, "Connection": "Inference-Header-Content-Length"}) == answer
    assert b"region" not in answer[1]


def assert_refused(answer: tuple[int, bytes]) -> None:
    status, body = answer
    assert (status, "reserved prefix" in json.loads(body)["error"]) == (400, True), answer


def test_nor_does_one_that_is_sent_on_while_it_comes(ask: Callable[..., tuple[int, bytes]]) -> None:
    """Three megabytes, with the names at their end."""
    body = json_on(REGION_PREFIX + "x", padding=3 << 20)
    assert_refused(ask("POST", "/v2/models/flat/infer", body))
    pieces = iter([body[at : at + 100_000] for at in range(0, len(body), 100_000)])
    assert_refused(ask("POST", "/v2/models/flat/infer", pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True))


def test_what_only_looks_like_a_name_is_answered(
    ask: Callable[..., tuple[int, bytes]], proxy: object, call: Callable[..., Any]
) -> None:
    text: dict[str, Any] = {"inputs": [{"name": "X", "datatype": "FP32", "data": [1]}]}
    text |= {"id": REGION_PREFIX + "x", "parameters": {"p": "my shared_memory_region", "q": PYTHONS}}
    for model in ("echo", "flat"):
        text["inputs"][0]["shape"] = [1, 1] if model == "echo" else [1]
        status, body = ask("POST", f"/v2/models/{model}/infer", json.dumps(text))
        assert (status, b'"data":[1.0]' in body) == (200, True), body
    message = request_on("", output=True, id=REGION_PREFIX + "x")
    del message.outputs[:]
    assert call(proxy, "ModelInfer", message)[0] is grpc.StatusCode.OK


@pytest.mark.parametrize("cut", [1, 7, 64, 1000])
def test_pieces_may_end_anywhere(cut: int) -> None:
    body = escaped(json_on(REGION_PREFIX + "x", padding=300), "shared")
    screen = RequestScreen(is_inference=True, refuses=False, json_bytes=None, encodings=[], limit=None)
    with pytest.raises(Exception, match="reserved prefix 'tidegate-'"):
        for at in range(0, len(body), cut):
            screen.look(body[at : at + cut])
    behind = RequestScreen(is_inference=True, refuses=True, json_bytes=10, encodings=[], limit=None)
    for at in range(0, len(body), cut):
        behind.look(body[at : at + cut])  # those are tensors


@pytest.mark.parametrize("strict", [False, True])
def test_in_a_stream_the_next_requests_are_answered(
    strict: bool, proxy: object, open_stream: Callable[..., Any]
) -> None:
    good = {name: request_of(name, {"X": np.ones((1, 1), np.float32)}, id=name) for name in ("echo", "repeater")}
    bad = [request_on(REGION_PREFIX + "x", id="bad"), request_on(PYTHONS, "repeater", output=True, id="bad")]
    metadata = [("triton_grpc_error", "true")] if strict else []
    stream = open_stream(proxy, [bad[0], good["echo"], bad[1], good["repeater"]], metadata=metadata)
    answers, code, details = rest_of(stream)
    assert code is grpc.StatusCode.OK, details
    refused = [answer for answer in answers if answer.error_message]
    assert [answer.infer_response.id for answer in refused] == ["bad", "bad"]
    assert all("reserved prefix" in answer.error_message for answer in refused)
    assert {answer.infer_response.id for answer in answers} == {"bad", "echo", "repeater"}


@pytest.mark.parametrize("model", MODELS)
def test_no_client_is_held_up_by_one_that_sends_millions_of_fields(
    model: str, proxy: object, call: Callable[..., Any], open_stream: Callable[..., Any]
) -> None:
    message = messages.ModelInferRequest(model_name=model).SerializeToString() + b"\x32\x00" * (1 << 23)
    code, words = call(proxy, "ModelInfer", message)
    assert (code, words) == (INVALID, "the message has more than 50000 fields")
    answers, code, _ = rest_of(open_stream(proxy, [message]))
    assert (code, [answer.error_message for answer in answers]) == (grpc.StatusCode.OK, [words])


KEYS = [
    *(f"{slashes}{name}1" for slashes in ("/", "", "//", "/./", "/a/../") for name in (REGION_PREFIX, PYTHONS)),
    "/tidegate_0123_1",
]


def test_no_such_region_is_registered_or_unregistered(
    proxy: object,
    triton: EmbeddedTriton,
    connect: Callable[..., Any],
    call: Callable[..., Any],
    ask: Callable[..., tuple[int, bytes]],
) -> None:
    names = own(triton, connect)
    for name in (*names, PYTHONS, "tidegate_x"):
        for kind in ("System", "Cuda"):
            register = getattr(messages, f"{kind}SharedMemoryRegisterRequest")(name=name, byte_size=4)
            unregister = getattr(messages, f"{kind}SharedMemoryUnregisterRequest")(name=name)
            for method, message in (("Register", register), ("Unregister", unregister)):
                code, words = call(proxy, f"{kind}SharedMemory{method}", message)
                assert (code, "reserved prefix" in words) == (INVALID, True), words
            for written in (name, name.replace("t", "%74")):
                path = f"/v2/{kind.lower()}sharedmemory/region/{written}"
                assert_refused(ask("POST", path + "/register", b'{"key":"/mine","byte_size":4}'))
                assert_refused(ask("POST", path + "/unregister"))
    for key in KEYS:
        message = messages.SystemSharedMemoryRegisterRequest(name="mine", key=key, byte_size=4)
        code, words = call(proxy, "SystemSharedMemoryRegister", message)
        assert code is INVALID
        assert words == (
            f"cannot register shared memory region 'mine' with key '{key}' as the key contains the reserved prefix "
            f"'{next(prefix for prefix in (REGION_PREFIX, PYTHONS, 'tidegate_') if prefix in key)}'"
        )
        path, quoted = "/v2/systemsharedmemory/region/mine/register", json.dumps(key).encode()
        for body in (
            b'{"key":%b,"byte_size":4}' % quoted,
            b'{"key":%b,"key":"/mine","byte_size":4}' % quoted,
            b'{"key":"/mine","key":%b,"byte_size":4}' % quoted,
            b'{"key":%b,"byte_size":4,"x":Inf}' % quoted,
            escaped(b'{"key":%b,"byte_size":4}' % quoted, "t"),
            escaped(b'{"key":%b,"byte_size":4,"x":Inf}' % quoted, "t"),
        ):
            assert_refused(ask("POST", path, body))
    assert own(triton, connect) == names


def test_clients_regions_are_theirs(
    proxy: object, triton: EmbeddedTriton, connect: Callable[..., Any], ask: Callable[..., tuple[int, bytes]]
) -> None:
    ours = own(triton, connect)
    client = connect(proxy)
    over_http = triton_http.InferenceServerClient(proxy.serving.http_address)  # type: ignore[attr-defined]
    keys = {name: f"/test-isolation-{triton.pid}-{name}" for name in ("a", "b")}
    regions = [shared_memory.create_shared_memory_region(name, key, 8) for name, key in keys.items()]
    try:
        for each in (client, over_http):
            for name, key in keys.items():
                each.register_system_shared_memory(name, key, 8)
            status, body = ask("GET", "/v2/systemsharedmemory/region/a/status")
            assert (status, [row["name"] for row in json.loads(body)]) == (200, ["a"])
            each.unregister_system_shared_memory("a")
            assert [row["name"] for row in over_http.get_system_shared_memory_status()] == ["b"]
            each.unregister_system_shared_memory()
            assert over_http.get_system_shared_memory_status() == []
            assert own(triton, connect) == ours, "who takes all away takes none of ours"
    finally:
        for region in regions:
            shared_memory.destroy_shared_memory_region(region)
        over_http.close()


def test_regions_in_use_stay_registered_in_tritons_words(
    gate: Any,
    proxy: object,
    triton: EmbeddedTriton,
    start_call: Callable[..., Any],
    connect: Callable[..., Any],
    call: Callable[..., Any],
) -> None:
    keys = {name: f"/test-isolation-{triton.pid}-{name}" for name in ("a", "b")}
    regions = [shared_memory.create_shared_memory_region(name, key, 8) for name, key in keys.items()]
    client = connect(proxy)
    seen = []
    try:
        client.register_system_shared_memory("b", keys["b"], 8)
        running = start_call(triton, "ModelInfer", request_on("b", "gated"))
        eventually(gate.somebody_waits, "the model to run")
        for server in (proxy, triton):  # who asks a Triton itself to forget all takes away Tidegate's, too
            http_address = server.http_address if server is triton else proxy.serving.http_address  # type: ignore[attr-defined]
            over_http = triton_http.InferenceServerClient(http_address)
            said = []
            client.register_system_shared_memory("a", keys["a"], 8)
            for name in ("b", ""):
                said.append(
                    call(
                        server, "SystemSharedMemoryUnregister", messages.SystemSharedMemoryUnregisterRequest(name=name)
                    )
                )
                with pytest.raises(InferenceServerException) as refused:
                    over_http.unregister_system_shared_memory(name)
                said.append((refused.value.status(), refused.value.message()))
                left = [row["name"] for row in over_http.get_system_shared_memory_status()]
                said.append([name for name in left if name in keys])
            over_http.close()
            seen.append(said)
    finally:
        gate.open()
        running.result()
        client.unregister_system_shared_memory()
        for region in regions:
            shared_memory.destroy_shared_memory_region(region)
    assert seen[1] == seen[0]
    assert seen[0][1] == ("500", "Cannot unregister shared memory region 'b', it is currently in use.")
    assert seen[0][-1] == ["b"], "those that are not in use were unregistered"


@pytest.mark.parametrize("region", ["a", "a%20b", REGION_PREFIX + "x"])
def test_the_status_of_a_region_that_no_client_registered(
    region: str, triton: EmbeddedTriton, ask: Callable[..., tuple[int, bytes]], proxy: object, call: Callable[..., Any]
) -> None:
    path = f"/v2/systemsharedmemory/region/{region}/status"
    direct = http.client.HTTPConnection(triton.http_address, timeout=60)
    direct.request("GET", path)
    response = direct.getresponse()
    assert ask("GET", path) == (response.status, response.read()) == (404, ask("GET", path)[1])
    direct.close()
    message = messages.SystemSharedMemoryStatusRequest(name=region)
    assert call(proxy, "SystemSharedMemoryStatus", message) == call(triton, "SystemSharedMemoryStatus", message)


def test_shared_memory_that_is_refused_is_refused_everywhere(
    triton: EmbeddedTriton,
    serve_here: Callable[..., Any],
    connect: Callable[..., Any],
    call: Callable[..., Any],
    open_stream: Callable[..., Any],
) -> None:
    proxy = serve(serve_here, triton, shared_memory="refuse")
    size = 4
    region = shared_memory.create_shared_memory_region("mine", f"/test-isolation-{triton.pid}", 2 * size)
    client: triton_grpc.InferenceServerClient = connect(triton)
    client.register_system_shared_memory("mine", f"/test-isolation-{triton.pid}", 2 * size)
    try:
        with asking(proxy) as ask:
            for model in MODELS:
                for output in (False, True):
                    message = request_on("mine", model, output=output)
                    code, words = call(proxy, "ModelInfer", message)
                    assert (code, "not taken here" in words) == (INVALID, True), words
                    answers, code, _ = rest_of(open_stream(proxy, [message]))
                    assert (code, "not taken here" in answers[0].error_message) == (grpc.StatusCode.OK, True)
                    for text in (json_on("mine", output=output), escaped(json_on("mine", output=output), "memory")):
                        status, body = ask("POST", f"/v2/models/{model}/infer", text)
                        assert (status, b"not taken here" in body) == (400, True), body
    finally:
        client.unregister_system_shared_memory("mine")
        shared_memory.destroy_shared_memory_region(region)


def test_a_load_that_is_refused_has_no_triton_asked(
    start_fake: Callable[..., Any], fake_http: str, serve_here: Callable[..., Any]
) -> None:
    fake = start_fake(lambda _request, _context: b"")
    closed = [{"apis": ["model-repository"], "closed": True}]
    proxy = serve_here(
        [],
        tritons=[{"grpc": fake.address, "http": fake_http}],
        listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
        restricted=closed,
    )
    asked = fake.asked["ModelConfig"]
    with asking(proxy) as ask:
        for _ in range(20):
            assert ask("POST", "/v2/repository/models/echo/load")[0] == 403
        assert ask("GET", "/v2/health/live")[0] == 200
    assert fake.asked["ModelConfig"] == asked
