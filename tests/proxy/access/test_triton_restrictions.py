"""What a Triton restricts, Tidegate serves no more openly, nor less: with nothing configured the Triton decides."""

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

from tests.conftest import eventually
from tests.proxy.fixtures.models import add_model
from tidegate.host import Plugins
from tidegate_proxy.access.gate import RestrictionError
from tidegate_proxy.app.doctor.examination import examine
from tidegate_proxy.commands.check import check
from tidegate_proxy.configuration.apis import RESTRICTABLE_APIS, Api
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.tritons import restrictions
from tidegate_proxy.tritons.backend import SERVICE_PREFIX
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.restrictions import TritonRestrictions, left_apis, problems

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
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "echo", "max_batch_size: 4")
    add_model(repository, "flat", "max_batch_size: 0")
    return repository


@pytest.fixture(scope="module")
def of_http(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> EmbeddedTriton:
    """A Triton whose inference over HTTP is not for everybody."""
    return start_triton([repository], options=[f"--http-restricted-api=inference:{KEY}=hush"])


@pytest.fixture(scope="module")
def of_grpc(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> EmbeddedTriton:
    """A Triton whose inference over gRPC is not for everybody."""
    return start_triton([repository], options=[f"--grpc-restricted-protocol=inference:{KEY}=hush"])


@pytest.fixture(scope="module")
def of_all(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> EmbeddedTriton:
    """One of which nothing is but health over HTTP, by which we know that it is ready."""
    options = [f"--grpc-restricted-protocol={','.join(RESTRICTABLE_APIS)}:{KEY}=hush"]
    options.append(f"--http-restricted-api={','.join(api for api in RESTRICTABLE_APIS if api != 'health')}:{KEY}=hush")
    return start_triton([repository], options=[*options, "--model-control-mode=explicit", "--load-model=*"])


@pytest.fixture
def hush(tmp_path: Path) -> Path:
    path = tmp_path / "hush"
    path.write_text("hush\n")
    return path


@pytest.fixture
def serve(serve_here: Callable[..., Any]) -> Callable[..., Any]:
    """`serve(triton, headers={...}, restricted=[...])`: a Tidegate before it."""

    def start(triton: EmbeddedTriton, headers: Mapping[str, Path] | None = None, **options: object) -> Any:
        return serve_here([], **{**document(triton, headers), **options})

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

    def ask(proxy: Any, method: str, path: str, body: bytes | None = None, headers: Any = None) -> int:
        connections.append(http.client.HTTPConnection(proxy.serving.http_address, timeout=60))
        connections[-1].request(method, path, body, headers or {})
        with connections[-1].getresponse() as response:
            response.read()
            return response.status

    yield ask
    for connection in connections:
        connection.close()


def over_grpc(proxy: Any, method: str, message: bytes, metadata: Mapping[str, str]) -> str:
    """The name of the status code, and of a refusal that it is one."""
    pairs = [("triton-grpc-protocol-" + name, value) for name, value in metadata.items()]
    with grpc.insecure_channel(proxy.address) as channel:
        try:
            if "Stream" in method:
                list(channel.stream_stream(SERVICE_PREFIX + method)(iter([message]), metadata=pairs, timeout=60))
            else:
                channel.unary_unary(SERVICE_PREFIX + method)(message, metadata=pairs, timeout=60)
        except grpc.RpcError as error:
            return "restricted" if "restricted" in error.details() else str(error.code().name)
    return "OK"


ANSWERED_ALIKE: dict[str, bytes] = {
    **{f"ModelInfer {model}": _request(model) for model in ("echo", "flat")},
    **{f"ModelStreamInfer {model}": _request(model) for model in ("echo", "flat")},
    **dict.fromkeys(("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"), b""),
    "SystemSharedMemoryStatus": b"",
    "ModelReady": service_pb2.ModelReadyRequest(name="flat").SerializeToString(),
    "ModelMetadata": service_pb2.ModelMetadataRequest(name="echo").SerializeToString(),
    "ModelConfig": service_pb2.ModelConfigRequest(name="echo").SerializeToString(),
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="flat").SerializeToString(),
}
"""Methods, with models where that matters, and messages."""
PATHS_ALIKE: dict[tuple[str, str], bytes | None] = {
    **{("POST", f"/v2/models/{model}/infer"): BODIES[model] for model in ("echo", "flat")},
    ("POST", "/v2/models/echo/versions/1/infer"): b"this is no JSON",
    ("POST", "/v2/repository/index"): b"{}",
    ("POST", "/v2/repository/models/flat/load"): b"{}",
    ("POST", "/v2/systemsharedmemory/unregister"): None,
    **{("GET", f"/v2{path}"): None for path in ("", "/health/live", "/health/ready", "/models/echo/config")},
    **{("GET", f"/v2{path}"): None for path in ("/systemsharedmemory/status", "/logging", "/models/flat/ready")},
}
KEYS: tuple[dict[str, str], ...] = ({}, {KEY: "wrong"}, {KEY: "hush"})


def answers(grpc_address: str, http_address: str) -> dict[str, object]:
    """What a server answers to all of these, without a key, with a wrong one and with the right one."""
    said: dict[str, object] = {}
    with grpc.insecure_channel(grpc_address) as channel:
        for (call, message), key in product(ANSWERED_ALIKE.items(), KEYS):
            method = SERVICE_PREFIX + call.split()[0]
            pairs = [("triton-grpc-protocol-" + name, value) for name, value in key.items()]
            answer: object
            try:
                if "Stream" in method:
                    stream = channel.stream_stream(method)(iter([message]), metadata=pairs, timeout=60)
                    answer = [str(service_pb2.ModelStreamInferResponse.FromString(each)) for each in stream]
                else:
                    answer = channel.unary_unary(method)(message, metadata=pairs, timeout=60)
            except grpc.RpcError as error:
                answer = (error.code(), error.details())
            said[f"{call} {key}"] = answer
    connection = http.client.HTTPConnection(http_address, timeout=60)
    for ((verb, path), body), key in product(PATHS_ALIKE.items(), KEYS):
        connection.request(verb, path, body, key)
        response = connection.getresponse()
        said[f"{verb} {path} {key}"] = (response.status, response.read())
    connection.close()
    return said


@pytest.mark.parametrize(
    ("over_grpc_restricted", "over_http_restricted"),
    [
        pytest.param("inference", "inference", marks=pytest.mark.slow),
        ("inference", ""),
        ("", "inference"),
        pytest.param("model-repository", "model-repository", marks=pytest.mark.slow),
        pytest.param("health,metadata", "health,metadata", marks=pytest.mark.slow),
        pytest.param("model-config", "", marks=pytest.mark.slow),
        ("model-repository,statistics,shared-memory", ""),
        (",".join(RESTRICTABLE_APIS), ",".join(RESTRICTABLE_APIS)),
    ],
)
def test_with_nothing_configured_each_call_is_answered_as_by_triton(
    start_triton: Callable[..., EmbeddedTriton],
    repository: Path,
    serve: Callable[..., Any],
    over_grpc_restricted: str,
    over_http_restricted: str,
) -> None:
    flags = {"grpc-restricted-protocol": over_grpc_restricted, "http-restricted-api": over_http_restricted}
    options = [f"--{flag}={apis}:{KEY}=hush" for flag, apis in flags.items() if apis]
    options += ["--model-control-mode=explicit", "--load-model=*"]
    triton = start_triton([repository], options=options)
    proxy = serve(triton)
    wanted = answers(triton.grpc_address, triton.http_address)
    assert any("restricted" in str(answer) for answer in wanted.values())
    seen = answers(proxy.address, proxy.serving.http_address)
    assert {call: (seen[call], wanted[call]) for call in wanted if seen[call] != wanted[call]} == {}


def scheduled(proxy: Any) -> int:
    """How many requests were answered that its policy has scheduled."""
    tally = proxy.in_loop(lambda: proxy.engine.tally)
    return int(tally.answered)


def test_what_is_left_to_a_triton_is_said(
    of_all: EmbeddedTriton, serve: Callable[..., Any], caplog: pytest.LogCaptureFixture, over_http: Ask
) -> None:
    proxy = serve(of_all, listen={**document(of_all)["listen"], "metrics": "127.0.0.1:0"})
    assert f"Triton at {of_all.grpc_address} refuses " in caplog.text
    assert "does not know which models it has" in caplog.text
    assert "give the header in tritons.N.headers" in caplog.text
    connection = http.client.HTTPConnection(proxy.serving.metrics_address, timeout=60)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    labels = f'api="inference",protocol="grpc",triton="{of_all.grpc_address}"'
    assert f"tidegate_triton_restricted_api{{{labels}}} 1.0" in page


def test_inferences_of_a_triton_without_its_key_are_not_scheduled(
    of_grpc: EmbeddedTriton, serve: Callable[..., Any], over_http: Ask
) -> None:
    proxy = serve(of_grpc)
    assert over_grpc(proxy, "ModelInfer", _request("echo"), {KEY: "hush"}) == "OK"
    assert over_http(proxy, "POST", "/v2/models/echo/infer", BODIES["echo"]) == 200
    assert scheduled(proxy) == 0
    (consent,) = proxy.in_loop(lambda: [proxy.serving.catalog.consents["echo"]])
    assert consent.scheduling == "bypass"
    assert "restricts inference over gRPC; a header in tritons.N.headers has it scheduled" in consent.why


def test_with_the_key_of_a_triton_those_clients_are_scheduled_that_have_it_too(
    of_grpc: EmbeddedTriton, serve: Callable[..., Any], hush: Path, over_http: Ask
) -> None:
    proxy = serve(of_grpc, {KEY: hush})
    for key in KEYS:
        for method in ("ModelInfer", "ModelStreamInfer"):
            assert over_grpc(proxy, method, _request("echo"), key) == ("OK" if key == {KEY: "hush"} else "restricted")
    assert scheduled(proxy) == 2
    assert (
        over_http(proxy, "POST", "/v2/models/echo/infer", BODIES["echo"]) == 200
    )  # which this Triton does not restrict
    assert scheduled(proxy) == 3


def test_over_http_as_well(of_http: EmbeddedTriton, serve: Callable[..., Any], hush: Path, over_http: Ask) -> None:
    proxy = serve(of_http, {KEY: hush})
    statuses = [over_http(proxy, "POST", "/v2/models/echo/infer", BODIES["echo"], key) for key in KEYS]
    assert statuses == [403, 403, 200]
    assert scheduled(proxy) == 1
    assert over_grpc(proxy, "ModelInfer", _request("echo"), {}) == "OK"
    assert scheduled(proxy) == 2


def test_of_two_tritons_that_which_restricts_nothing_serves_clients_without_a_key(
    start_triton: Callable[..., EmbeddedTriton],
    of_grpc: EmbeddedTriton,
    repository: Path,
    serve_here: Callable[..., Any],
    over_http: Ask,
) -> None:
    tritons = [of_grpc, start_triton([repository])]
    addresses = [{"grpc": triton.grpc_address, "http": triton.http_address} for triton in tritons]
    proxy = serve_here([], tritons=addresses, listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"})
    for model, _ in product(("echo", "flat"), range(4)):
        assert over_grpc(proxy, "ModelInfer", _request(model), {}) == "OK"
        assert over_http(proxy, "POST", f"/v2/models/{model}/infer", BODIES[model]) == 200
    assert scheduled(proxy) == 8
    assert over_grpc(proxy, "ServerReady", b"", {}) == "OK"


def test_a_client_without_the_key_cannot_have_a_model_drained(
    start_triton: Callable[..., EmbeddedTriton], repository: Path, serve: Callable[..., Any]
) -> None:
    options = [f"--grpc-restricted-protocol=model-repository:{KEY}=hush", "--model-control-mode=explicit"]
    triton = start_triton([repository], options=[*options, "--load-model=*"])
    proxy = serve(triton)
    unload = service_pb2.RepositoryModelUnloadRequest(model_name="echo").SerializeToString()
    catalog = proxy.in_loop(lambda: proxy.serving.catalog)
    assert over_grpc(proxy, "RepositoryModelUnload", unload, {KEY: "wrong"}) == "restricted"
    assert proxy.in_loop(lambda: proxy.serving.catalog) is catalog
    assert over_grpc(proxy, "RepositoryModelUnload", unload, {KEY: "hush"}) == "OK"
    assert "echo" not in proxy.in_loop(lambda: proxy.serving.catalog).models


def test_an_slo_of_a_model_that_cannot_be_seen_keeps_nothing_from_starting(
    of_all: EmbeddedTriton, serve: Callable[..., Any]
) -> None:
    proxy = serve(of_all, models={"echo": {"slo_ms": 50}})
    assert over_grpc(proxy, "ModelInfer", _request("echo"), {KEY: "hush"}) == "OK"


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


def test_it_is_served_to_every_client_where_that_is_said(
    of_http: EmbeddedTriton, serve: Callable[..., Any], hush: Path, over_http: Ask
) -> None:
    opened = [{"apis": ["inference"], "protocols": ["http"], "open": True}]
    proxy = serve(of_http, {KEY: hush}, restricted=opened)
    for model, body in BODIES.items():
        assert over_http(proxy, "POST", f"/v2/models/{model}/infer", body) == 200


def test_health_is_answered_without_the_key_where_that_is_said(
    start_triton: Callable[..., EmbeddedTriton], repository: Path, serve: Callable[..., Any], over_http: Ask
) -> None:
    options = [f"--{flag}=health:{KEY}=hush" for flag in ("grpc-restricted-protocol", "http-restricted-api")]
    proxy = serve(start_triton([repository], options=options), restricted=[{"apis": ["health"], "open": True}])
    assert over_grpc(proxy, "ServerReady", b"", {}) == "OK"
    assert [over_http(proxy, "GET", f"/v2/health/{what}") for what in ("live", "ready")] == [200, 200]


def test_a_wrong_key_is_found_at_the_start(of_all: EmbeddedTriton, serve: Callable[..., Any], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("loud")
    with pytest.raises(RestrictionError, match=rf"tritons.N.headers gives does not open it .*protocol-{KEY}'"):
        serve(of_all, {KEY: wrong})


@pytest.mark.parametrize("api", ["model-repository", "model-config", "inference"])
def test_what_tidegate_decides_about_needs_the_key(api: Api) -> None:
    words: dict[Api, str] = {api: f"This protocol is restricted, expecting header 'triton-grpc-protocol-{KEY}'"}
    backend: Any = SimpleNamespace(address="a:1", headers=())
    entry: dict[str, Any] = {"apis": [api], "open": True}
    config = read_config(flags={"tritons": [{"grpc": "a:1"}], "restricted": [entry]})
    (problem,) = problems(backend, {"grpc": TritonRestrictions(words, words)}, config)
    assert problem.startswith(f"Triton at a:1 restricts {api} over gRPC (--grpc-restricted-protocol), which Tidegate")
    assert "needs: give it in tritons.N.headers" in problem
    closed = read_config(flags={"tritons": [{"grpc": "a:1"}], "restricted": [{"apis": [api], "closed": True}]})
    assert not [*problems(backend, {"grpc": TritonRestrictions(words, words)}, closed)]


def test_everything_behind_another_key(
    of_all: EmbeddedTriton, serve: Callable[..., Any], hush: Path, over_http: Ask, tmp_path: Path
) -> None:
    ((name, value),) = OURS.items()
    proxy = serve(
        of_all, {KEY: hush}, restricted=[{"apis": [*RESTRICTABLE_APIS], "header": {"name": name, "value": value}}]
    )
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
    asyncio.run_coroutine_threadsafe(proxy.serving.reconfigure(unrestricted), proxy.loop).result(30)
    assert over_http(proxy, "POST", "/v2/models/echo/infer", BODIES["echo"]) == 403
    assert over_http(proxy, "POST", "/v2/models/echo/infer", BODIES["echo"], {KEY: "hush"}) == 200


def test_check_says_so(of_all: EmbeddedTriton, of_http: EmbeddedTriton, tmp_path: Path) -> None:
    path, wrong = tmp_path / "tidegate.yaml", tmp_path / "wrong"
    wrong.write_text("loud")
    path.write_text(yaml.safe_dump(document(of_all, {KEY: wrong})))
    (error, *_) = json.loads(CliRunner().invoke(CHECK, [str(path), "--online", "--json"]).stdout)["errors"]
    assert "what tritons.N.headers gives does not open it" in error["what"]
    path.write_text(yaml.safe_dump(document(of_http, {KEY: tmp_path / "nowhere"})))
    (error,) = json.loads(CliRunner().invoke(CHECK, [str(path), "--json"]).stdout)["errors"]
    assert error["where"].startswith("tritons.0.headers")


def test_doctor_says_what_is_left_to_tritons(of_all: EmbeddedTriton) -> None:
    examination = asyncio.run(examine(read_config(flags=document(of_all)), Plugins.installed()))
    found = [finding for finding in examination.findings if finding.rule == "restricted-api"]
    assert {finding.severity for finding in found} == {"warning"}
    assert any("give the header in tritons.N.headers" in str(finding) for finding in found)
    assert not [finding for finding in examination.findings if finding.severity == "error"]


def test_a_triton_that_comes_back_opens_nothing_unasked(
    repository: Path,
    start_triton: Callable[..., EmbeddedTriton],
    serve: Callable[..., Any],
    over_http: Ask,
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
    eventually(lambda: backend.alive, "the Triton to be taken back")
    assert "restricts inference over HTTP (--http-restricted-api): Tidegate passes such calls" in caplog.text
    assert over_http(proxy, "POST", path, body) == 403
    assert over_http(proxy, "POST", path, body, {KEY: "hush"}) == 200
    assert over_grpc(proxy, "ModelInfer", _request("echo"), {}) == "OK"


def _answers(*refused: Api, unknown: tuple[Api, ...] = (), is_absent: bool = False) -> TritonRestrictions:
    words = dict.fromkeys(refused, f"expecting header '{KEY}'")
    return TritonRestrictions(words, {}, frozenset(unknown), is_absent)


def test_what_a_triton_does_not_say_it_decides_itself() -> None:
    config = ServeConfig.model_validate({"tritons": ("a:1",)})
    silent = left_apis({"grpc": _answers(), "http": _answers(unknown=tuple(RESTRICTABLE_APIS))}, config)
    assert {api for protocol, api in silent.left if protocol == "http"} == set(RESTRICTABLE_APIS)
    assert silent.unknown == silent.left
    said = left_apis({"grpc": _answers(), "http": _answers("trace")}, config, silent)
    assert said.left == {("http", "trace")}
    assert not said.unknown
    again = left_apis({"grpc": _answers(), "http": _answers(unknown=tuple(RESTRICTABLE_APIS))}, config, said)
    assert again.left == said.left, "what it said before holds"
    absent = left_apis({"grpc": _answers(), "http": _answers(unknown=tuple(RESTRICTABLE_APIS), is_absent=True)}, config)
    assert (absent.left, len(absent.unknown)) == (frozenset(), len(RESTRICTABLE_APIS))


def test_a_triton_that_is_slow_over_http_opens_nothing_unasked(
    of_http: EmbeddedTriton, serve: Callable[..., Any], over_http: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, and then known to restrict inference alone."""

    async def silent(*_: object) -> None:
        return None

    monkeypatch.setattr("tidegate_proxy.service.discovery.DISCOVERY_INTERVAL_S", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(restrictions, "_asked", silent)
        proxy = serve(of_http)
    ask = ("POST", "/v2/models/echo/infer", BODIES["echo"])
    assert over_http(proxy, *ask) == 403
    (backend,) = proxy.serving._discovery.backends
    assert {api for protocol, api in backend.apis.left if protocol == "http"} == set(RESTRICTABLE_APIS)
    eventually(lambda: backend.apis.left == {("http", "inference")}, "it to be asked again")
    assert over_http(proxy, *ask) == 403
