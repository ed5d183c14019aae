"""Metadata and headers of clients reach Triton with their requests, scheduled or not."""

import http.client
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from tests.python_models import write_model
from tidegate_proxy.messages.forwarded_metadata import forwarded, forwarded_with_all, may_read_headers, metadata_of
from tidegate_proxy.tritons.embedded import EmbeddedTriton

CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
SOURCE = """
import grpc
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            rows = pb.get_input_tensor_by_name(request, "X").as_numpy().shape[0]
            told = np.array([[request.parameters()]] * rows, dtype=object)
            answers.append(pb.InferenceResponse([pb.Tensor("TOLD", told)]))
        return answers
"""


def test_what_belongs_to_the_connection_stays() -> None:
    metadata = (("user-agent", "me"), ("grpc-timeout", "1S"), ("te", "trailers"), ("x-mine", "1"), ("x-key", "secret"))
    assert forwarded(metadata, {"x-key"}) == [("user-agent", "me"), ("x-mine", "1")]


@pytest.mark.parametrize("key", ["te", "tenant-id", "team", "temperature", "user-agent", "user-agent-hints", "te-bin"])
def test_only_whole_names_belong_to_the_connection(key: str) -> None:
    kept = key != "te"
    assert forwarded(((key, "x"),), ()) == [(key, "x")] * kept


def test_a_batch_says_what_all_of_its_requests_say() -> None:
    one, other = (("a", "1"), ("b", "1")), (("b", "1"), ("a", "2"))
    assert forwarded_with_all([one, one], ()) == [*one]
    assert forwarded_with_all([one, other], ()) == [("b", "1")]
    assert forwarded_with_all([one, other, ()], ()) == []


def test_headers_as_metadata() -> None:
    headers = [
        (b"content-type", b"x"), (b"host", b"h"), (b"grpc-timeout", b"1n"), (b"x-bin", b"a"), (b"x y", b"a"),
        (b"x-umlaut", b"\xe4"), (b"x-mine", b"a b"), (b"traceparent", b"00-1"),
    ]  # fmt: skip
    assert metadata_of(headers) == (("x-mine", "a b"), ("traceparent", "00-1"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a model that tells its parameters."""
    version = write_model(tmp_path_factory.mktemp("telling"), "telling", SOURCE, CONFIG)
    return version.parents[1]


@pytest.fixture(scope="module")
def telling(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> EmbeddedTriton:
    """A Triton that makes parameters of some headers."""
    patterns = ["--grpc-header-forward-pattern=my-.*", "--http-header-forward-pattern=my-.*"]
    return start_triton([repository], options=patterns)


def ask(module: Any, client: Any, **headers: str) -> str:
    tensor = module.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return str(client.infer("telling", [tensor], headers=named).as_numpy("TOLD")[0, 0].decode())


def test_a_request_alone_is_told_as_by_triton(
    telling: EmbeddedTriton, start_tidegate: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path
) -> None:
    tidegate = start_tidegate([], listen_http="127.0.0.1:0", config=_config(tmp_path, telling))
    direct, through = connect(telling), connect(tidegate)
    headers = {"my_first": "1", "my_second": "two", "other": "3"}
    assert ask(triton_grpc, through, **headers) == ask(triton_grpc, direct, **headers) != "{}"
    address = next(line.split()[1] for line in tidegate.output.splitlines() if line.startswith("HTTP"))
    for client in (triton_http.InferenceServerClient(address), triton_http.InferenceServerClient(telling.http_address)):
        with client:
            assert "two" in ask(triton_http, client, **headers)


AWKWARD = {
    "a blank behind": ["my-x: a b  "],
    "nothing": ["my-x:"],
    "blanks only": ["my-x:   "],
    "blanks before": ["my-x:   a"],
    "twice": ["my-x: 1", "my-x: 2 "],
    "more than gRPC takes": [f"my-{index}: {'y' * 6000}" for index in range(4)],
    "more than gRPC takes for sure": [f"my-{index}: {'y' * 3000}" for index in range(3)],
    "of no concern": [f"cookie-{index}: {'y' * 6000}" for index in range(4)] + ["my-x: 1"],
}


@pytest.mark.parametrize("case", AWKWARD)
def test_http_headers_are_told_as_by_triton(case: str, telling: EmbeddedTriton, over_http: str) -> None:
    direct = _told(telling.http_address, *AWKWARD[case])
    assert _told(over_http, *AWKWARD[case]) == direct
    assert "my-" in direct[1]


def test_a_header_that_no_triton_takes_is_left_out(telling: EmbeddedTriton, over_http: str) -> None:
    long = "my-long: " + "y" * 20_000
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        _told(telling.http_address, long)
    assert _told(over_http, long, "my-x: 1") == _told(over_http, "my-x: 1")


@pytest.fixture(scope="module")
def over_http(
    telling: EmbeddedTriton, start_tidegate: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The HTTP address of a Tidegate before it."""
    config = _config(tmp_path_factory.mktemp("config"), telling)
    tidegate = start_tidegate([], listen_http="127.0.0.1:0", config=config)
    return str(next(line.split()[1] for line in tidegate.output.splitlines() if line.startswith("HTTP")))


def _told(address: str, *headers: str, host: str = "") -> tuple[int, str]:
    """Status and body of an answer to a request with such lines in its head."""
    body = b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}]}'
    lines = [
        "POST /v2/models/telling/infer HTTP/1.1",
        f"Host: {host or address}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    name, _, port = address.partition(":")
    with socket.create_connection((name, int(port)), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        told = response.read().decode()
        return response.status, told


def test_of_a_batch_no_client_is_told_what_others_said(
    telling: EmbeddedTriton, start_tidegate: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    client = connect(start_tidegate([telling]))
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda number: ask(triton_grpc, client, my_all="same", my_own=str(number)), range(200)))
    assert all('"my-all":"same"' in each for each in told)
    assert all('"my-own"' not in each or f'"my-own":"{number}"' in each for number, each in enumerate(told))


PATTERNS = {
    "HTTP alone": ["--http-header-forward-pattern=X-.*"],
    "gRPC alone": ["--grpc-header-forward-pattern=.*"],
    "both, unlike": ["--http-header-forward-pattern=(?i)tenant", "--grpc-header-forward-pattern=x-.*"],
    "none": [],
}


@pytest.mark.parametrize("patterns", PATTERNS)
def test_with_nothing_configured_a_model_sees_the_same_over_each_protocol(
    patterns: str,
    repository: Path,
    start_triton: Callable[..., EmbeddedTriton],
    start_tidegate: Callable[..., Any],
    tmp_path: Path,
) -> None:
    triton = start_triton([repository], options=PATTERNS[patterns])
    tidegate = start_tidegate([], listen_http="127.0.0.1:0", config=_config(tmp_path, triton))
    offer = ["X-Tenant: blue", "Upgrade: h2c"]
    for lines in (["X-Tenant: blue"], ["x-tenant: blue", "Cookie: a=b"], ["User-Agent: me", "Accept: */*"], offer, []):
        through, direct = (_told(address, *lines, host="x") for address in (_http_of(tidegate), triton.http_address))
        assert through == direct, lines
    for metadata in ({"x-tenant": "blue"}, {}):
        assert _over_grpc(tidegate.address, metadata) == _over_grpc(triton.grpc_address, metadata)


def test_where_the_pattern_is_known_requests_are_scheduled_that_it_does_not_match(
    repository: Path, start_triton: Callable[..., EmbeddedTriton], serve_here: Callable[..., Any]
) -> None:
    patterns = ["--http-header-forward-pattern=X-.*", "--grpc-header-forward-pattern=.*"]
    triton = start_triton([repository], options=patterns)
    address = {"grpc": triton.grpc_address, "http": triton.http_address}
    known = {"http_header_forward_pattern": "X-.*", "grpc_header_forward_pattern": ".*"}
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    proxy = serve_here([], tritons=[{**address, **known}], listen=listen)
    answered = []
    for line in ("X-Tenant: blue", "x-tenant: blue", "Cookie: a=b"):
        assert _told(proxy.serving.http_address, line, host="x") == _told(triton.http_address, line, host="x")
        answered.append(proxy.in_loop(lambda: proxy.engine.tally.answered))
    assert answered == [0, 0, 1]


def test_requests_share_no_batch_that_differ_in_what_a_known_pattern_forwards(
    telling: EmbeddedTriton, serve_here: Callable[..., Any]
) -> None:
    address = {"grpc": telling.grpc_address, "http": telling.http_address, "grpc_header_forward_pattern": "my-.*"}
    proxy = serve_here([], tritons=[address])
    with ThreadPoolExecutor(16) as pool:
        asked = [{"my-own": str(number % 5), "other": str(number)} for number in range(100)]
        told = list(pool.map(lambda metadata: _over_grpc(proxy.address, metadata), asked))
    assert told == [f'{{"my-own":"{number % 5}"}}' for number in range(100)]
    assert proxy.in_loop(lambda: proxy.engine.tally.answered) == 100


def test_headers_that_tidegate_reads_keep_no_request_from_being_scheduled(
    telling: EmbeddedTriton, serve_here: Callable[..., Any]
) -> None:
    address = {"grpc": telling.grpc_address, "http": telling.http_address}
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    proxy = serve_here([], tritons=[address], listen=listen, app={"header": "x-app"})
    assert _told(proxy.serving.http_address, "X-App: search")[0] == 200
    assert proxy.in_loop(lambda: proxy.engine.tally.answered) == 1


@pytest.mark.parametrize(
    ("config", "reads"),
    [
        ('backend: "python"', True),
        ('backend: "mine"', True),
        ("", True),
        ('backend: "onnxruntime"', False),
        ('backend: "tensorrt"', False),
        ('backend: "pytorch" runtime: "model.py"', True),
    ],
)
def test_models_that_may_read_headers(config: str, reads: bool) -> None:
    assert may_read_headers(text_format.Parse(config, model_config_pb2.ModelConfig())) is reads


def _over_grpc(address: str, metadata: Mapping[str, str]) -> str:
    """What the model tells of its request's parameters."""
    request = service_pb2.ModelInferRequest(model_name="telling")
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(np.ones(1, np.float32).tobytes())
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(request, metadata=tuple(metadata.items()), timeout=60)
    told: bytes = answer.raw_output_contents[0][4:]
    return told.decode()


def _http_of(tidegate: Any) -> str:
    return str(next(line.split()[1] for line in tidegate.output.splitlines() if line.startswith("HTTP")))


def _config(folder: Path, triton: EmbeddedTriton) -> Path:
    path = folder / "tidegate.yaml"
    path.write_text(f"tritons: [{{grpc: '{triton.grpc_address}', http: '{triton.http_address}'}}]\npolicy: fifs\n")
    return path
