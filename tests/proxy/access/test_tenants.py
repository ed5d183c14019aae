"""Tenants: whose request it is, how urgent it may be, and what its rate limit rejects."""

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tidegate.api import Dispatch, RequestArrived
from tidegate.observation import read_log
from tidegate.workload.tenants import RateLimit
from tidegate_proxy.access.gate import AccessControl
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import ConfigError, read_config
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})
BY_HEADER = {"by": "metadata", "key": "x-tenant"}
LONG_S = 1000
"""Seconds after which a bucket has another token, so that none comes during a test."""


def _of(name: str) -> tuple[tuple[str, str], ...]:
    return (("x-tenant", name),)


def test_a_rate_limit_rejects_with_the_time_to_try_again_and_costs_other_tenants_nothing(
    triton: EmbeddedTriton, serve_here: Make, start_call: Make
) -> None:
    limited = {"requests_per_s": 1 / LONG_S}
    tenants = {**BY_HEADER, "named": {"small": limited, "passing": limited, "web": limited}}
    options: dict[str, Any] = {
        "tritons": [{"grpc": triton.grpc_address, "http": triton.http_address}],
        "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
    }
    proxy = serve_here([], **options, tenants=tenants)
    message = request_of("echo", {"X": ROW})
    by_sequence = request_of("echo", {"X": ROW})
    by_sequence.parameters["sequence_id"].int64_param = 7  # it is not scheduled
    for tenant, sent in (("small", message), ("passing", by_sequence)):
        first = start_call(proxy, "ModelInfer", sent, metadata=_of(tenant))
        assert first.exception() is None or first.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
        second = start_call(proxy, "ModelInfer", sent, metadata=_of(tenant))
        assert second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"Exceeds the rate limit of tenant '{tenant}': 0.001 requests per second" in second.details()
        trailers = dict(second.trailing_metadata())
        assert trailers["tidegate-reason"] == "rate_limited"
        assert 0.9 * LONG_S < int(trailers["grpc-retry-pushback-ms"]) / 1000 <= LONG_S
    for _ in range(3):
        assert start_call(proxy, "ModelInfer", message, metadata=_of("unnamed")).exception() is None
    statuses = []
    for _ in range(2):
        connection = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
        connection.request("POST", "/v2/models/echo/infer", BODY, {"X-Tenant": "web"})
        answer = connection.getresponse()
        statuses.append(answer.status)
        body = json.loads(answer.read())
        connection.close()
    assert statuses == [200, 429]
    assert body == {"error": body["error"]}
    assert 0.9 * LONG_S < int(answer.headers["Retry-After"]) <= LONG_S
    assert answer.headers["tidegate-reason"] == "rate_limited"

    freed = read_config(
        flags={**options, "policy": {"name": "fifs"}, "tenants": {**BY_HEADER, "named": {"small": {"weight": 2}}}}
    )
    proxy.run(proxy.serving.reconfigure(freed))
    assert start_call(proxy, "ModelInfer", message, metadata=_of("small")).exception() is None


def test_an_urgent_request_is_in_the_next_batch_and_a_tenant_cannot_be_more_urgent_than_it_may(
    triton: EmbeddedTriton, gate: Any, serve_here: Make, start_call: Make, tmp_path: Path
) -> None:
    """By Triton's parameter, by the tenant, and by neither: a priority that is none of the levels is the default."""
    named = {"batch": {"priority": 2, "weight": 2}, "live": {"weight": 1}}
    models = {"gated": {"priority_levels": 3, "default_priority_level": 2}}
    proxy = serve_here(
        [triton], tenants={**BY_HEADER, "named": named}, models=models, event_log=tmp_path / "log", policy="fifs"
    )
    wanted = [("batch", 1)] * 12 + [("live", 0)] * 12 + [("live", 9)] + [("live", 1)]
    calls = []
    for number, (tenant, priority) in enumerate(wanted, 1):
        message = request_of("gated", {"X": ROW})
        if priority:
            message.parameters["priority"].uint64_param = priority
        calls.append(start_call(proxy, "ModelInfer", message, metadata=_of(tenant)))
        eventually(lambda number=number: proxy.engine.tally.accepted == number, "it to arrive")
    gate.open()
    assert all(under_way.exception() is None for under_way in calls)
    proxy.stop()
    with (tmp_path / "log").open("rb") as lines:
        entries = list(read_log(lines)[1])
    seen = [entry.event.request for entry in entries if isinstance(entry.event, RequestArrived)]
    assert [request.priority for request in seen] == [2] * 25 + [1]
    assert {(request.tenant, request.weight) for request in seen} == {("batch", 2.0), ("live", 1.0)}
    dispatched = [command.batch for entry in entries for command in entry.commands if isinstance(command, Dispatch)]
    place = next(number for number, batch in enumerate(dispatched) if seen[-1].id in batch.request_ids)
    assert place <= 1, "behind the batch that ran alone"


def _config(**tenants: Any) -> ServeConfig:
    return ServeConfig.model_validate_json(json.dumps({"tritons": ["h:1"], "tenants": tenants}))


def test_tenants_by_credential_keep_their_use_over_a_reload(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-of-gold\n")
    named = {"gold": {"credentials_file": str(tmp_path / "keys"), "requests_per_s": 1 / LONG_S}}
    gate = AccessControl(_config(by="token", named=named))
    for metadata in ([("authorization", "Bearer key-of-gold")], [("x-api-key", "key-of-gold")]):
        assert gate.owner(metadata, lambda: "peer") == "gold/peer"
    assert gate.owner([("x-api-key", "another")], lambda: "peer") == "default/peer"
    assert gate.why_over_limit("gold/peer") is None
    gate.replace(_config(by="token", named=named))
    assert gate.why_over_limit("gold/peer") is not None
    by_app = AccessControl(_config(by="application", named={"ocr": {"values": ["lines", "words"], "weight": 2}}))
    assert by_app.owner([], lambda: "peer") == "peer"
    tenant = by_app.tenant_of("peer", "words")
    assert tenant is not None
    assert (tenant.name, tenant.config.weight) == ("ocr", 2)


def test_quotas_are_exact_within_two_percent_over_ten_seconds() -> None:
    for requests_per_s, rows_per_s, rows in ((100, None, 1), (None, 1000, 7), (50, 100, 4)):
        limit, admitted = RateLimit(requests_per_s, rows_per_s, 0.1), 0
        for now_ns in range(0, 10_000_000_000, 1_000_000):
            admitted += limit.take(now_ns, rows) == 0
        least = min(requests_per_s or 1e9, (rows_per_s or 1e9) / rows) * 10
        assert abs(admitted / least - 1) <= 0.02


A = {"a": {"weight": 1}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tenants": {**BY_HEADER, "named": {"a": {"weight": -1}}}}, "tenants.named.a.weight"),
    ({"tenants": {**BY_HEADER, "named": {"a": {"requests_per_s": 0}}}}, "0 would reject every request"),
    ({"tenants": {"by": "metadata", "named": A}}, "key: by: metadata needs one"),
    ({"tenants": {"by": "token", "named": A}}, "named.a: needs credentials_file"),
    ({"tenants": {**BY_HEADER, "named": {"a": {"values": ["x"]}, "b": {"values": ["x"]}}}}, "'x' belongs to 'a'"),
    ({"tenants": {**BY_HEADER, "named": {"a/b": {"weight": 1}}}}, "has a slash"),
    ({"priority_floors": {"2": 0.7, "3": 0.5}}, "they add up to 1.2"),
    ({"priority_floors": {"1": 0.1}}, "class 1 is the most urgent one"),
    ({"models": {"m": {"priority_levels": 2, "default_priority_level": 3}}}, "3 is none of 2 priority_levels"),
]


def test_bad_input_is_named_with_its_place() -> None:
    for given, words in WRONG:
        with pytest.raises(ConfigError) as raised:
            read_config(flags={"tritons": ["h:1"], **given})
        assert words in str(raised.value)
