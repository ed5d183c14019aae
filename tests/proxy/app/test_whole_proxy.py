"""The whole proxy as a configuration file describes it: both frontends, the gate, TLS, statistics and metrics
together."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as messages

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.tritons.backend import SERVICE_PREFIX
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 1, 1]}]}).encode()
OK = grpc.StatusCode.OK


def _serve(start_proxy_here: Make, triton: EmbeddedTriton, folder: Path, **document: Any) -> Any:
    path = folder / "tidegate.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "tritons": [
                    {"grpc": triton.grpc_address, "http": triton.http_address, "metrics": triton.metrics_address}
                ],
                "listen": dict.fromkeys(("grpc", "http", "metrics"), "127.0.0.1:0"),
                "policy": "fifs",
                "drain_timeout_s": 0,
                **document,
            }
        )
    )
    return start_proxy_here(read_config(path))


def _http(
    address: str, path: str, body: bytes | None = None, tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, bytes]:
    url = f"http{'s' if tls else ''}://{address}{path}"
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, given)
    try:
        with urllib.request.urlopen(request, timeout=60, context=tls) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _infer(channel: grpc.Channel, *metadata: tuple[str, str], model: str = "echo") -> grpc.StatusCode:
    try:
        message = request_of(model, {"X": ROW}).SerializeToString()
        channel.unary_unary(SERVICE_PREFIX + "ModelInfer")(message, metadata=metadata, timeout=60)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return OK


@pytest.fixture
def plain(triton: EmbeddedTriton, start_proxy_here: Make, tmp_path: Path) -> Any:
    """A proxy without anything special."""
    return _serve(start_proxy_here, triton, tmp_path).serving


def test_both_frontends_count_in_the_same_statistics_and_metrics(plain: Any) -> None:
    with grpc.insecure_channel(plain.address) as channel:
        assert [_infer(channel) for _ in range(3)] == [OK] * 3
        message = messages.ModelStatisticsRequest(name="echo").SerializeToString()
        answer = channel.unary_unary(SERVICE_PREFIX + "ModelStatistics")(message)
    for _ in range(4):
        assert _http(plain.http_address, "/v2/models/echo/infer", BODY)[0] == 200
    (over_grpc,) = messages.ModelStatisticsResponse.FromString(answer).model_stats
    assert over_grpc.inference_stats.success.count == 3
    status, body = _http(plain.http_address, "/v2/models/echo/stats")
    over_http = json.loads(body)["model_stats"][0]
    assert (status, over_http["inference_stats"]["success"]["count"], over_http["inference_count"]) == (200, 7, 7)
    _, page = _http(plain.metrics_address, "/metrics")
    samples = {
        (sample.name, sample.labels.get("model"), sample.labels.get("outcome")): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if "triton" not in sample.labels
    }
    assert samples["nv_inference_request_success_total", "echo", None] == 7  # the parser adds the ending
    outcomes = [samples["tidegate_requests_total", "echo", outcome] for outcome in ("on_time", "late")]
    assert sum(outcomes) == 7


def test_an_ensemble_counts_once_over_each_frontend(plain: Any) -> None:
    before = json.loads(_http(plain.http_address, "/v2/models/chain/stats")[1])["model_stats"][0]
    with grpc.insecure_channel(plain.address) as channel:
        assert _infer(channel, model="chain") is OK
    assert _http(plain.http_address, "/v2/models/chain/infer", BODY)[0] == 200
    after = json.loads(_http(plain.http_address, "/v2/models/chain/stats")[1])["model_stats"][0]
    counts = [stats["inference_stats"]["success"]["count"] for stats in (before, after)]
    assert counts[1] - counts[0] == 2


def test_health_over_both(plain: Any) -> None:
    assert _http(plain.http_address, "/v2/health/live")[0] == 200
    assert _http(plain.http_address, "/v2/health/ready")[0] == 200
    assert _http(plain.http_address, "/v2/models/echo/ready")[0] == 200
    assert _http(plain.http_address, "/v2/models/nope/ready")[0] == 400


def test_who_may_call(triton: EmbeddedTriton, start_proxy_here: Make, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("s3cret\n")
    authentication = {"tokens_file": "tokens", "open": ["health"]}
    proxy = _serve(start_proxy_here, triton, tmp_path, authentication=authentication).serving
    with grpc.insecure_channel(proxy.address) as channel:
        assert _infer(channel) is grpc.StatusCode.UNAUTHENTICATED
        assert _infer(channel, ("authorization", "Bearer wrong")) is grpc.StatusCode.UNAUTHENTICATED
        assert _infer(channel, ("authorization", "Bearer s3cret")) is OK
        stream = channel.stream_stream(SERVICE_PREFIX + "ModelStreamInfer")
        with pytest.raises(grpc.RpcError, match="Authentication required"):
            list(stream(iter([request_of("echo", {"X": ROW}).SerializeToString()]), timeout=60))
    status, body = _http(proxy.http_address, "/v2/models/echo/infer", BODY)
    assert (status, "error" in json.loads(body)) == (401, True)
    assert _http(proxy.http_address, "/v2/models/echo/infer", BODY, authorization="Bearer s3cret")[0] == 200
    assert _http(proxy.http_address, "/v2/health/ready")[0] == 200


def test_what_is_closed(triton: EmbeddedTriton, start_proxy_here: Make, tmp_path: Path) -> None:
    restricted = [
        {"apis": ["model-repository"], "closed": True},
        {"apis": ["statistics"], "header": {"name": "admin", "value": "yes"}},
    ]
    proxy = _serve(start_proxy_here, triton, tmp_path, restricted=restricted).serving
    index = messages.RepositoryIndexRequest().SerializeToString()
    with grpc.insecure_channel(proxy.address) as channel:
        assert _infer(channel) is OK
        with pytest.raises(grpc.RpcError, match="closed"):
            channel.unary_unary(SERVICE_PREFIX + "RepositoryIndex")(index, timeout=60)
    assert _http(proxy.http_address, "/v2/repository/index", b"{}")[0] == 403
    assert _http(proxy.http_address, "/v2/models/stats")[0] == 403
    assert _http(proxy.http_address, "/v2/models/stats", admin="yes")[0] == 200


def test_tls_on_both_frontends(triton: EmbeddedTriton, start_proxy_here: Make, tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("me@example.org")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in server.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    tls = {"cert": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
    proxy = _serve(start_proxy_here, triton, tmp_path, tls=tls).serving
    known, unknown = (
        grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair)
        for pair in ((client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()), (None, None))
    )
    with grpc.secure_channel(proxy.address, known) as channel:
        assert _infer(channel) is OK
    with grpc.secure_channel(proxy.address, unknown) as channel:
        assert _infer(channel) is grpc.StatusCode.UNAVAILABLE
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        _http(proxy.http_address, "/v2/models/echo/infer", BODY, context)
    client.configure_cert(context)
    assert _http(proxy.http_address, "/v2/models/echo/infer", BODY, context)[0] == 200


@pytest.mark.parametrize(("status", "http"), [("RESOURCE_EXHAUSTED", 429), ("DEADLINE_EXCEEDED", 504)])
def test_shedding_has_the_status_that_is_configured(
    status: str,
    http: int,
    gate: Any,
    triton: EmbeddedTriton,
    start_proxy_here: Make,
    start_call: Make,
    call: Make,
    tmp_path: Path,
) -> None:
    proxy = _serve(start_proxy_here, triton, tmp_path, shedding={"status": status}, limits={"max_queue_size": 1})
    gated = request_of("gated", {"X": ROW})
    running = start_call(proxy, "ModelInfer", gated)
    eventually(gate.somebody_waits, "the model to run")
    assert call(proxy, "ModelInfer", gated)[0].name == status
    assert _http(proxy.serving.http_address, "/v2/models/gated/infer", BODY)[0] == http
    gate.open()
    assert running.result()


def test_shared_memory_may_be_refused(triton: EmbeddedTriton, start_proxy_here: Make, tmp_path: Path) -> None:
    proxy = _serve(start_proxy_here, triton, tmp_path, shared_memory="refuse").serving
    request = messages.ModelInferRequest(model_name="echo")
    tensor = request.inputs.add(name="X", datatype="FP32", shape=[1, 3])
    tensor.parameters["shared_memory_region"].string_param = "region"
    with (
        grpc.insecure_channel(proxy.address) as channel,
        pytest.raises(grpc.RpcError, match="shared memory are not taken"),
    ):
        channel.unary_unary(SERVICE_PREFIX + "ModelInfer")(request.SerializeToString(), timeout=60)
