"""Metadata and headers of clients reach Triton with their requests, scheduled or not."""

import http.client
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tidegate_proxy.embedded import EmbeddedTriton
from tidegate_proxy.forwarded import forwarded, forwarded_with_all, metadata_of

CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "tidegate_batch" value: { string_value: "merge" } }
"""
SOURCE = """
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
    assert forwarded(metadata, {"x-key"}) == [("x-mine", "1")]


@pytest.mark.parametrize("key", ["te", "tenant-id", "team", "temperature", "user-agent", "user-agent-hints", "te-bin"])
def test_only_whole_names_belong_to_the_connection(key: str) -> None:
    kept = key not in ("te", "user-agent")
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
def telling(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton that makes parameters of some headers, with a model that tells its parameters."""
    version = tmp_path_factory.mktemp("telling") / "telling" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(SOURCE)
    patterns = ["--grpc-header-forward-pattern=my-.*", "--http-header-forward-pattern=my-.*"]
    return start_triton([version.parents[1]], options=patterns)


def ask(module: Any, client: Any, **headers: str) -> str:  # noqa: ANN401 - of two clients
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


def _told(address: str, *headers: str) -> tuple[int, str]:
    """Status and body of an answer to a request with such lines in its head."""
    body = b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}]}'
    lines = ["POST /v2/models/telling/infer HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}", *headers]
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        told = response.read().decode()
        return response.status, told


def test_of_a_batch_nobody_is_told_what_others_said(
    telling: EmbeddedTriton, start_tidegate: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    client = connect(start_tidegate([telling]))
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda number: ask(triton_grpc, client, my_all="same", my_own=str(number)), range(200)))
    assert all('"my-all":"same"' in each for each in told)
    assert all('"my-own"' not in each or f'"my-own":"{number}"' in each for number, each in enumerate(told))


def _config(folder: Path, triton: EmbeddedTriton) -> Path:
    path = folder / "tidegate.yaml"
    path.write_text(f"tritons: [{{grpc: '{triton.grpc_address}', http: '{triton.http_address}'}}]\npolicy: fifs\n")
    return path
