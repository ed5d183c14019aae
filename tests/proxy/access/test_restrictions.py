"""Restricted APIs: the same calls are refused, in the same words, as by a Triton with the same restrictions."""

import http.client
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tidegate_proxy.access.gate import RestrictionError, Restrictions
from tidegate_proxy.configuration.access import ApiRestriction
from tidegate_proxy.configuration.apis import METHOD_API, RESTRICTABLE_APIS, Api
from tidegate_proxy.servers.http.routes import match
from tidegate_proxy.tritons.backend import SERVICE_PREFIX
from tidegate_proxy.tritons.embedded import EmbeddedTriton

METHODS = sorted(service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name)
MODEL_ENDS = (
    "",
    "/infer",
    "/generate",
    "/generate_stream",
    "/ready",
    "/config",
    "/stats",
    "/trace/setting",
    "/nope",
    "/infer/x",
)
PATHS = [
    *("/", "/v2", "/v2/", "/nope", "/metrics", "/v2/models", "/v2/models/", "/v2//models/M", "/v2/health/nope"),
    *(
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/stats",
        "/v2/models/stats?verbose=1",
        "/v2/models/stats/infer",
    ),
    *(f"/v2/models/{model}{end}" for model in ("M", "M/versions/1", "M/versions/x", "a%2Fb") for end in MODEL_ENDS),
    *("/v2/repository/index", "/v2/repository/R/index", "/v2/repository/models/M/nope", "/v2/repository"),
    *(f"/v2/repository{r}/models/M/{what}" for r in ("", "/R") for what in ("load", "unload")),
    *(
        f"/v2/{kind}sharedmemory{region}/{what}"
        for kind in ("system", "cuda", "other")
        for region in ("", "/region/R")
        for what in ("status", "register", "unregister", "nope")
    ),
    *("/v2/trace/setting", "/v2/trace", "/v2/logging", "/v2/logging/x"),
]


class _NotAskedForHealth(EmbeddedTriton):
    """One that does not say over HTTP whether it is ready."""

    def _answers(self, service: int, path: str) -> bool:
        return service == 1 or super()._answers(service, path)  # the metrics come up after HTTP


def _api_of(path: str) -> Api | None:
    route = match(path.partition("?")[0].encode())
    return route.api if route else None


def _key(api: str) -> dict[str, str]:
    return {"name": f"k-{api}", "value": f"opens {api}"}


def _restrictions(*apis: str) -> Restrictions:
    return Restrictions([ApiRestriction.model_validate_json(_json(apis=[api], header=_key(api))) for api in apis])


def _json(**fields: object) -> str:
    return json.dumps(fields)


@pytest.fixture(scope="module")
def triton(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton without models, every API restricted but health over HTTP, by which we know that it is ready."""
    options = [
        f"--{flag}={api}:{_key(api)['name']}={_key(api)['value']}"
        for api in RESTRICTABLE_APIS
        for flag in ("grpc-restricted-protocol", "http-restricted-api")
        if (flag, api) != ("http-restricted-api", "health")
    ]
    return start_triton([tmp_path_factory.mktemp("none")], options=["--model-control-mode=explicit", *options])


OVER_GRPC = _restrictions(*RESTRICTABLE_APIS)
OVER_HTTP = _restrictions(*(set(RESTRICTABLE_APIS) - {"health"}))


@pytest.mark.parametrize("method", [*(SERVICE_PREFIX + method for method in METHODS), "/grpc.health.v1.Health/Check"])
def test_every_method_is_refused_and_opened_as_by_triton(triton: EmbeddedTriton, method: str) -> None:
    with grpc.insecure_channel(triton.grpc_address) as channel:

        def ask(metadata: tuple[tuple[str, str], ...]) -> tuple[grpc.StatusCode, str] | None:
            """Triton's refusal; None if it is something else that it says."""
            try:
                if "Stream" in method:
                    list(channel.stream_stream(method)(iter([b""]), metadata=metadata, timeout=60))
                else:
                    channel.unary_unary(method)(b"", metadata=metadata, timeout=60)
            except grpc.RpcError as error:
                return (error.code(), error.details()) if "restricted" in error.details() else None
            return None

        name = f"triton-grpc-protocol-k-{METHOD_API[method]}"
        right = (name, f"opens {METHOD_API[method]}")
        for metadata in (
            (),
            (right,),
            ((name, "no"),),
            ((name, ""),),
            ((name.removeprefix("triton-grpc-protocol-"), right[1]),),
            (right, (name, "no")),
            ((name, "no"), right),
        ):
            assert OVER_GRPC.refusal(method, metadata) == ask(metadata), metadata


def test_every_method_of_triton_belongs_to_an_api() -> None:
    assert {SERVICE_PREFIX + method for method in METHODS} == {
        method for method in METHOD_API if SERVICE_PREFIX in method
    }


@pytest.fixture(scope="module")
def ask_http(triton: EmbeddedTriton) -> Any:
    connection = http.client.HTTPConnection(triton.http_address, timeout=60)

    def ask(method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes, str | None] | None:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        return (response.status, body, response.headers["content-type"]) if b"restricted" in body else None

    yield ask
    connection.close()


def test_every_route_is_refused_and_opened_as_by_triton(ask_http: Any) -> None:
    for path, method, key in product(PATHS, ("GET", "POST"), ("none", "its own", "another's")):
        api = _api_of(path)
        headers = {"none": {}, "its own": {f"k-{api}": f"opens {api}"}, "another's": {"k-metadata": ""}}[key]
        refusal = OVER_HTTP.http_refusal(api, headers)
        ours = None if refusal is None else (refusal.status, refusal.body, dict(refusal.headers)["content-type"])
        assert ours == ask_http(method, path, headers), (method, path, headers)


def test_health_over_http_is_refused_as_by_triton(tmp_path: Path) -> None:
    options = ["--model-control-mode=explicit", "--http-restricted-api=health:k-health=opens health"]
    ours = _restrictions("health")
    with _NotAskedForHealth([tmp_path], options=options, grace_s=0) as triton:
        connection = http.client.HTTPConnection(triton.http_address, timeout=60)
        for path in PATHS:
            connection.request("GET", path)
            response = connection.getresponse()
            theirs = (response.status, response.read())
            refusal = ours.http_refusal(_api_of(path), {})
            assert (theirs if b"restricted" in theirs[1] else None) == (refusal and refusal[:2]), path
        connection.close()


def test_what_is_closed_is_closed_to_every_client() -> None:
    closed = Restrictions([ApiRestriction.model_validate_json(_json(apis=["model-repository"], closed=True))])
    refusal = closed.refusal(SERVICE_PREFIX + "RepositoryModelLoad", [("x", "y")])
    assert refusal == (grpc.StatusCode.PERMISSION_DENIED, "This protocol is closed")
    over_http = closed.http_refusal("model-repository", {})
    assert over_http is not None
    assert over_http[:2] == (403, b'{"error":"This API is closed"}')
    assert closed.refusal(SERVICE_PREFIX + "ModelInfer", []) is None
    assert closed.http_refusal("inference", {}) is None


def test_without_restrictions_nothing_is_refused() -> None:
    assert all(Restrictions([]).refusal(method, []) is None for method in METHOD_API)
    assert all(Restrictions([]).http_refusal(api, {}) is None for api in (*RESTRICTABLE_APIS, None))


def test_a_value_out_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "value"
    restriction = ApiRestriction.model_validate_json(
        _json(apis=["trace"], header={"name": "Admin", "value_file": str(path)})
    )
    with pytest.raises(RestrictionError, match="value: No such file or directory; a value_file holds"):
        Restrictions([restriction])
    path.write_text("hush\n")
    assert Restrictions([restriction]).http_refusal("trace", {"admin": "hush"}) is None
    assert Restrictions([restriction]).http_refusal("trace", {"admin": "hush\n"}) is not None
    for text in ("", "a\nb", "käse"):
        path.write_text(text)
        with pytest.raises(RestrictionError, match="it must hold one line of ASCII"):
            Restrictions([restriction])


@pytest.mark.parametrize("value", ["\udcff", "\ud800", "é", b"\xff", b""])
def test_whatever_a_client_sends_is_compared(value: str | bytes) -> None:
    assert OVER_GRPC.refusal(SERVICE_PREFIX + "LogSettings", [("triton-grpc-protocol-k-logging", value)]) is not None
