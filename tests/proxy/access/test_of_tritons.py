"""What a Triton restricts, Tidegate does not serve more openly; and what it needs of it, it says in so many words."""

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import typer
import yaml
from tritonclient.grpc import service_pb2
from typer.testing import CliRunner

from tidegate_proxy.access.apis import APIS, Api
from tidegate_proxy.access.of_tritons import Restricted, problems
from tidegate_proxy.access.restrictions import RestrictionError
from tidegate_proxy.backend import SERVICE
from tidegate_proxy.commands.check import check
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.embedded import EmbeddedTriton

CHECK = typer.Typer()
CHECK.command()(check)
KEY = "admin-key"
OURS = {"client-key": "of a client"}
Ask = Callable[..., int]
BODIES = {
    model: json.dumps({"inputs": [{"name": "X", "shape": shape, "datatype": "FP32", "data": [1]}]}).encode()
    for model, shape in {"echo": [1, 1], "flat": [1]}.items()
}
"""A model that is scheduled, and one that is not."""


def _request(model: str) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1] if model == "echo" else [1])
    request.raw_input_contents.append(np.ones(1, np.float32).tobytes())
    serialized: bytes = request.SerializeToString()
    return serialized


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, add_model: Callable[..., Path]) -> Path:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "echo", "max_batch_size: 4")
    add_model(repository, "flat", "max_batch_size: 0")
    return repository


@pytest.fixture(scope="module")
def of_http(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> EmbeddedTriton:
    """A Triton whose inference over HTTP is not for everybody."""
    return start_triton([repository], options=[f"--http-restricted-api=inference:{KEY}=hush"])


@pytest.fixture(scope="module")
def of_all(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> EmbeddedTriton:
    """One of which nothing is but health over HTTP, by which we know that it is ready."""
    options = [f"--grpc-restricted-protocol={','.join(APIS)}:{KEY}=hush"]
    options.append(f"--http-restricted-api={','.join(api for api in APIS if api != 'health')}:{KEY}=hush")
    return start_triton([repository], options=[*options, "--model-control-mode=explicit", "--load-model=*"])


@pytest.fixture
def hush(tmp_path: Path) -> Path:
    path = tmp_path / "hush"
    path.write_text("hush\n")
    return path


@pytest.fixture
def serve(serve_here: Callable[..., Any]) -> Callable[..., Any]:
    """`serve(triton, headers={...}, restricted=[...])`: a Tidegate before it."""

    def start(triton: EmbeddedTriton, headers: Mapping[str, Path] | None = None, **options: object) -> Any:  # noqa: ANN401
        return serve_here([], **document(triton, headers), **options)

    return start


def document(triton: EmbeddedTriton, headers: Mapping[str, Path] | None = None) -> dict[str, Any]:
    address = {"grpc": triton.grpc_address, "http": triton.http_address}
    return {
        "tritons": [{**address, "headers": {name: str(path) for name, path in (headers or {}).items()}}],
        "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
    }


@pytest.fixture
def over_http() -> Iterator[Ask]:
    """`over_http(proxy, "GET", path, body, {header: value})`: the status of the answer."""
    connections = []

    def ask(proxy: Any, method: str, path: str, body: bytes | None = None, headers: Any = None) -> int:  # noqa: ANN401
        connections.append(http.client.HTTPConnection(proxy.serving.http_address, timeout=20))
        connections[-1].request(method, path, body, headers or {})
        with connections[-1].getresponse() as response:
            response.read()
            return response.status

    yield ask
    for connection in connections:
        connection.close()


def over_grpc(proxy: Any, method: str, message: bytes, metadata: Mapping[str, str]) -> str:  # noqa: ANN401
    """The name of the status code, and of a refusal that it is one."""
    pairs = [("triton-grpc-protocol-" + name, value) for name, value in metadata.items()]
    with grpc.insecure_channel(proxy.address) as channel:
        try:
            if "Stream" in method:
                list(channel.stream_stream(SERVICE + method)(iter([message]), metadata=pairs, timeout=20))
            else:
                channel.unary_unary(SERVICE + method)(message, metadata=pairs, timeout=20)
        except grpc.RpcError as error:
            return "restricted" if "restricted" in error.details() else str(error.code().name)
    return "OK"


def test_inference_that_is_not_for_everybody_over_http_is_not_served_to_everybody(
    of_http: EmbeddedTriton, serve: Callable[..., Any]
) -> None:
    with pytest.raises(RestrictionError) as refused:
        serve(of_http)
    assert str(refused.value).startswith(
        f"Triton at {of_http.grpc_address} restricts inference over HTTP (--http-restricted-api), and Tidegate would "
        "serve it to everybody: say in `restricted`, for protocol http, who may use it"
    )


def test_it_is_served_to_those_who_have_the_key(
    of_http: EmbeddedTriton, serve: Callable[..., Any], hush: Path, over_http: Ask
) -> None:
    key = {"name": KEY, "value_file": str(hush)}
    proxy = serve(of_http, restricted=[{"apis": ["inference"], "protocols": ["http"], "header": key}])
    for model, body in BODIES.items():
        path = f"/v2/models/{model}/infer"
        assert over_http(proxy, "POST", path, body) == 403
        assert over_http(proxy, "POST", path, body, {KEY: "wrong"}) == 403
        assert over_http(proxy, "POST", path, body, {KEY: "hush"}) == 200
        assert over_grpc(proxy, "ModelInfer", _request(model), {}) == "OK"


def test_it_is_served_to_everybody_where_that_is_said(
    of_http: EmbeddedTriton, serve: Callable[..., Any], hush: Path, over_http: Ask
) -> None:
    opened = [{"apis": ["inference"], "protocols": ["http"], "open": True}]
    proxy = serve(of_http, {KEY: hush}, restricted=opened)
    for model, body in BODIES.items():
        assert over_http(proxy, "POST", f"/v2/models/{model}/infer", body) == 200


def test_what_is_needed_is_asked_for(of_all: EmbeddedTriton, serve: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(RestrictionError, match=r"restricts health over gRPC .*needs: give it in tritons.N.headers"):
        serve(of_all)
    wrong = tmp_path / "wrong"
    wrong.write_text("loud")
    with pytest.raises(RestrictionError, match=rf"tritons.N.headers gives does not open it .*protocol-{KEY}'"):
        serve(of_all, {KEY: wrong})


@pytest.mark.parametrize(
    ("api", "over_http"),
    [
        *product(("health", "model-repository", "model-config", "inference"), (False, True)),
        *product(("statistics", "shared-memory"), (True,)),
    ],
)
def test_whatever_is_needed_is_named(api: Api, over_http: bool) -> None:
    words: dict[Api, str] = {api: f"This protocol is restricted, expecting header 'triton-grpc-protocol-{KEY}'"}
    backend: Any = SimpleNamespace(address="a:1", headers=())
    (problem, *_) = problems(backend, {"grpc": Restricted(words, words)}, [], over_http=over_http)
    assert problem.startswith(f"Triton at a:1 restricts {api} over gRPC (--grpc-restricted-protocol), which Tidegate")
    assert KEY in problem


def test_what_triton_itself_refuses_is_none_of_our_business() -> None:
    words: dict[Api, str] = {"logging": "This protocol is restricted"}
    backend: Any = SimpleNamespace(address="a:1", headers=())
    found = Restricted(words, words)
    assert not [*problems(backend, {"grpc": found, "http": found}, [], over_http=True)]


def test_nothing_is_opened_unasked(of_all: EmbeddedTriton, serve: Callable[..., Any], hush: Path) -> None:
    with pytest.raises(RestrictionError, match=r"over gRPC \(--grpc-restricted-protocol\), and Tidegate") as refused:
        serve(of_all, {KEY: hush})
    assert all(api in str(refused.value) for api in APIS)
    half = [{"apis": [*APIS], "protocols": ["grpc"], "closed": True}]
    with pytest.raises(RestrictionError, match=r"over HTTP \(--http-restricted-api\)") as refused:
        serve(of_all, {KEY: hush}, restricted=half)
    assert "health" not in str(refused.value)


def test_everything_behind_another_key(
    of_all: EmbeddedTriton,
    serve: Callable[..., Any],
    hush: Path,
    over_http: Ask,
    eventually: Callable[..., None],
    tmp_path: Path,
) -> None:
    ((name, value),) = OURS.items()
    proxy = serve(of_all, {KEY: hush}, restricted=[{"apis": [*APIS], "header": {"name": name, "value": value}}])
    calls = {
        "ServerReady": b"",
        "ModelInfer": _request("echo"),
        "ModelStreamInfer": _request("flat"),
        "ServerMetadata": b"",
        "RepositoryIndex": b"",
        "ModelStatistics": b"",
        "SystemSharedMemoryStatus": b"",
        "SystemSharedMemoryUnregister": b"",
        "ModelConfig": service_pb2.ModelConfigRequest(name="flat").SerializeToString(),
        "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="flat").SerializeToString(),
        "TraceSetting": b"",
        "LogSettings": b"",
    }
    for method, message in calls.items():
        assert over_grpc(proxy, method, message, {}) == "restricted", method
        assert over_grpc(proxy, method, message, {KEY: "hush"}) == "restricted", method
        assert over_grpc(proxy, method, message, {**OURS, KEY: "wrong"}) == "OK", method
    assert over_grpc(proxy, "ModelInfer", _request("flat"), OURS) == "OK"
    routes = {
        ("POST", "/v2/models/echo/infer"): BODIES["echo"],
        ("POST", "/v2/models/flat/infer"): BODIES["flat"],
        ("POST", "/v2/repository/index"): b"{}",
        ("POST", "/v2/repository/models/flat/load"): b"{}",
        ("POST", "/v2/systemsharedmemory/unregister"): None,
        **{("GET", f"/v2{path}"): None for path in ("", "/health/ready", "/models/echo/config", "/models/stats")},
        **{("GET", f"/v2{path}"): None for path in ("/systemsharedmemory/status", "/trace/setting", "/logging")},
    }
    for (method, path), body in routes.items():
        assert over_http(proxy, method, path, body) == 403, path
        assert over_http(proxy, method, path, body, {**OURS, KEY: "wrong"}) == 200, path
    # A key that is changed at the Triton is changed here without a restart.
    hush.write_text("another")
    (backend,) = proxy.in_loop(lambda: list(proxy.serving._discovery.backends))
    eventually(lambda: backend.headers == ((KEY, "another"),), "the new key to be read")


def test_a_reload_opens_nothing_unasked(
    of_http: EmbeddedTriton, serve: Callable[..., Any], hush: Path, over_http: Ask
) -> None:
    key = {"name": KEY, "value_file": str(hush)}
    proxy = serve(of_http, restricted=[{"apis": ["inference"], "protocols": ["http"], "header": key}])
    unrestricted = read_config(flags={**document(of_http), "policy": {"name": "fifs"}})
    with pytest.raises(RestrictionError, match="restricts inference over HTTP"):
        asyncio.run_coroutine_threadsafe(proxy.serving.reconfigure(unrestricted), proxy.loop).result(30)
    assert over_http(proxy, "POST", "/v2/models/echo/infer", BODIES["echo"]) == 403


def test_check_says_so(of_all: EmbeddedTriton, of_http: EmbeddedTriton, tmp_path: Path) -> None:
    for triton, words in (
        (of_all, "restricts health over gRPC"),
        (of_http, "restricts inference over HTTP"),
    ):
        path = tmp_path / "tidegate.yaml"
        path.write_text(yaml.safe_dump(document(triton)))
        result = CliRunner().invoke(CHECK, [str(path), "--online", "--json"])
        errors = json.loads(result.stdout)["errors"]
        assert [words in error["what"] for error in errors] == [True], errors
    path.write_text(yaml.safe_dump(document(of_http, {KEY: tmp_path / "nowhere"})))
    (error,) = json.loads(CliRunner().invoke(CHECK, [str(path), "--json"]).stdout)["errors"]
    assert error["where"].startswith("tritons.0.headers")


def test_a_triton_that_comes_back_opens_nothing_unasked(
    repository: Path,
    start_triton: Callable[..., EmbeddedTriton],
    serve: Callable[..., Any],
    hush: Path,
    over_http: Ask,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    triton = start_triton([repository])
    proxy = serve(triton)
    path, body = "/v2/models/echo/infer", BODIES["echo"]
    assert over_http(proxy, "POST", path, body) == 200
    ports = {"grpc_port": int(triton.grpc_address.split(":")[1]), "http_port": int(triton.http_address.split(":")[1])}
    triton.stop()
    (backend,) = proxy.serving._discovery.backends
    eventually(lambda: not backend.alive, "the Triton to be missed")
    start_triton([repository], options=[f"--http-restricted-api=inference:{KEY}=hush"], **ports)
    eventually(lambda: "it is not taken back" in caplog.text, "the Triton to be refused")
    assert "restricts inference over HTTP (--http-restricted-api), and Tidegate would serve it" in caplog.text
    assert over_http(proxy, "POST", path, body) == 503
    said = {**document(triton), "policy": {"name": "fifs"}}
    key = {"name": KEY, "value_file": str(hush)}
    said["restricted"] = [{"apis": ["inference"], "protocols": ["http"], "header": key}]
    asyncio.run_coroutine_threadsafe(proxy.serving.reconfigure(read_config(flags=said)), proxy.loop).result(30)
    eventually(lambda: backend.alive, "the Triton to be taken back")
    assert over_http(proxy, "POST", path, body) == 403
    assert over_http(proxy, "POST", path, body, {KEY: "hush"}) == 200
