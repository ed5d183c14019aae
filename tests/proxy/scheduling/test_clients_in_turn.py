"""A client with many requests under way does not keep its neighbor waiting; who counts as a client is configured."""

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client import generate_latest

from tests.conftest import eventually
from tests.proxy.fixtures.calls import CHANNEL_OPTIONS, request_of, rest_of
from tidegate.api import Dispatch, RequestArrived
from tidegate.observation import read_log
from tidegate_proxy.access.gate import AccessControl, ClientIdentity
from tidegate_proxy.base.labels import digest
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import QueueLimits
from tidegate_proxy.observability.metrics_registry import registry_of
from tidegate_proxy.scheduling.in_flight import QueueLoad, queue_refusal
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.tritons.backend import INFER_METHOD
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
BATCH = 4
MANY = 60
ROW = np.ones((1, 3), np.float32)


@pytest.fixture
def new_connection() -> Iterator[Make]:
    """`new_connection(proxy)`: what sends over a connection of its own."""
    channels: list[grpc.Channel] = []

    def connected(proxy: Any) -> Any:
        options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        channels.append(grpc.insecure_channel(proxy.address, options=options))
        return channels[-1].unary_unary(INFER_METHOD).future

    yield connected
    for channel in channels:
        channel.close()


TENANTS = {"by": "metadata", "key": "tenant-id"}


@pytest.mark.parametrize(
    ("clients", "crowd", "neighbor", "connections", "apart"),
    [
        ({"by": "connection"}, (), (), 2, True),
        ({"by": "connection"}, (), (), 1, False),
        (TENANTS, (("tenant-id", "a"),), (("tenant-id", "b"),), 1, True),
        (TENANTS, (("tenant-id", "a"),), (("tenant-id", "a"),), 2, False),
        ({"by": "token"}, (("authorization", "Bearer a"),), (("authorization", "Bearer b"),), 1, True),
    ],
)
def test_a_neighbor_is_in_one_of_the_next_batches(
    clients: dict[str, str],
    crowd: Any,
    neighbor: Any,
    connections: int,
    apart: bool,
    policy: str,
    triton: EmbeddedTriton,
    gate: Any,
    serve_here: Make,
    new_connection: Make,
    tmp_path: Path,
) -> None:
    proxy = serve_here([triton], policy=policy, clients=clients, event_log=tmp_path / "log")
    one = new_connection(proxy)
    other = new_connection(proxy) if connections > 1 else one
    message = request_of("gated", {"X": ROW}).SerializeToString()
    calls = [one(message, metadata=crowd, timeout=60) for _ in range(MANY)]
    eventually(lambda: proxy.engine.tally.accepted == MANY, "the crowd to arrive")
    eventually(gate.somebody_waits, "the model to run")
    calls.append(other(message, metadata=neighbor, timeout=60))
    eventually(lambda: proxy.engine.tally.accepted == MANY + 1, "the neighbor to arrive")
    gate.open()
    for under_way in calls:
        under_way.result()
    assert proxy.stop().answered == MANY + 1
    before = _served_before_the_last(tmp_path / "log")
    # The batch that runs, the one that was seen already, and its own: of those that run at a time, some.
    if apart:
        assert before <= MANY // 2
    else:
        assert before > MANY // 2


def _served_before_the_last(log: Path) -> int:
    """The number of requests in batches that were begun before the one of the request that came last."""
    with log.open("rb") as lines:
        entries = list(read_log(lines)[1])
    last = [entry.event.request.id for entry in entries if isinstance(entry.event, RequestArrived)][-1]
    batches = [
        command.batch.request_ids for entry in entries for command in entry.commands if isinstance(command, Dispatch)
    ]
    whose = next(place for place, requests in enumerate(batches) if last in requests)
    return sum(map(len, batches[:whose]))


def _metrics(proxy: Any) -> str:
    driver = proxy.serving.driver
    registry = registry_of(proxy.in_loop(driver.observability.metrics.snapshot), "fifs", 0, {}, ClientBounds())
    return generate_latest(registry).decode()


def _owner(clients: dict[str, str], metadata: dict[str, str | bytes], **more: Any) -> str:
    config = ServeConfig.model_validate({"tritons": ({"grpc": "localhost:8001"},), "clients": clients, **more})
    return ClientIdentity(config).of(metadata.get, lambda: "ipv4:10.0.0.1:5000")


def test_owners_are_told_apart_without_telling_their_secrets() -> None:
    assert _owner({"by": "connection"}, {"authorization": "Bearer x"}) == "ipv4:10.0.0.1:5000"
    assert _owner(TENANTS, {"tenant-id": "a"}) == "a"
    assert _owner(TENANTS, {"tenant-id": b"a"}) == "a"
    assert _owner(TENANTS, {}) == ""
    assert len(_owner(TENANTS, {"tenant-id": "x" * 1000})) < 100
    tokens = [_owner({"by": "token"}, {"authorization": f"Bearer secret{number}"}) for number in range(2)]
    assert tokens[0] != tokens[1]
    assert "secret" not in tokens[0]
    keys = [_owner({"by": "token"}, {"x-api-key": f"secret{number}"}) for number in range(2)]
    assert len({*keys, *tokens}) == 4
    assert _owner({"by": "token"}, {}) == ""


def test_one_credential_is_one_owner_however_it_is_written(tmp_path: Path) -> None:
    for name in ("tokens", "keys"):
        (tmp_path / name).write_text(f"{name}-1\n{name}-2\n")
    files = {"tokens_file": tmp_path / "tokens", "api_keys_file": tmp_path / "keys"}
    config = {"tritons": ({"grpc": "localhost:8001"},), "clients": {"by": "token"}, "authentication": files}
    gate = AccessControl(ServeConfig.model_validate(config))

    def owner(*metadata: tuple[str, str]) -> str:
        headers = dict(reversed(metadata))
        assert gate.refusal(INFER_METHOD, metadata) is None
        assert gate.http_refusal("inference", headers) is None
        of_grpc = gate.owner(metadata, str)
        assert gate.http_owner(headers.get, str) == of_grpc
        return of_grpc

    token = ("authorization", "Bearer tokens-1")
    written = [("authorization", text) for text in ("bearer tokens-1", "BEARER tokens-1", "Bearer   tokens-1 ")]
    assert {owner(token), *map(owner, written), owner(token, ("authorization", "x"))} == {owner(token)}
    key = ("x-api-key", "keys-1")
    beside = [owner(("authorization", text), key) for text in ("a", "b", "Bearer tokens-2")]
    assert {owner(key), owner(("x-api-key", "keys-1 ")), *beside} == {owner(key)}
    assert len({owner(token), owner(key), owner(("authorization", "Bearer tokens-2"))}) == 3
    assert "tokens-1" not in owner(token)
    assert gate.refusal(INFER_METHOD, [("authorization", "x"), token]) is not None, (
        "the first one counts, as everywhere"
    )


def test_a_key_that_may_be_secret_is_recorded_as_a_digest() -> None:
    for key in ("authorization", "x-api-key", "session-token"):
        config = {"tritons": ["h:1"], "clients": {"by": "metadata", "key": key}}
        gate = AccessControl(ServeConfig.model_validate_json(json.dumps(config)))
        owner = gate.owner([(key, "Bearer hush")], lambda: "peer")
        assert (owner, "hush" in owner) == (digest("Bearer hush"), False)
    config = {"tritons": ["h:1"], "clients": {"by": "metadata", "key": "tenant-id"}}
    assert (
        AccessControl(ServeConfig.model_validate_json(json.dumps(config))).owner([("tenant-id", "a")], lambda: "peer")
        == "a"
    )


@pytest.mark.parametrize("clients", [{"by": "metadata"}, {"by": "token", "key": "x"}])
def test_a_key_belongs_to_metadata(clients: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="key: by: metadata needs one, the others have none"):
        _owner(clients, {})


def test_full_queues_refuse_those_who_filled_them_first() -> None:
    limits = QueueLimits(
        requests=1000, bytes=10_000, reserved_queue_fraction_per_client=0.01, reserved_queue_fraction_per_model=0.1
    )
    full, little, much = QueueLoad(1000, 0), QueueLoad(9, 0), QueueLoad(500, 0)
    assert queue_refusal(limits, QueueLoad(999, 9_999), much, much) == ""
    assert queue_refusal(limits, full, much, much) == "requests"
    assert queue_refusal(limits, full, little, much) == ""
    assert queue_refusal(limits, full, much, little) == ""
    assert queue_refusal(limits, QueueLoad(1100, 0), little, little) == "requests"
    assert queue_refusal(limits, QueueLoad(10, 10_000), QueueLoad(10, 5_000), QueueLoad(10, 5_000)) == "bytes"
    assert queue_refusal(limits, QueueLoad(10, 10_000), QueueLoad(5, 99), QueueLoad(10, 5_000)) == ""
    assert queue_refusal(limits, QueueLoad(10, 11_000), QueueLoad(5, 99), QueueLoad(10, 5_000)) == "bytes"


def test_a_newcomer_is_admitted_to_full_queues_and_the_crowd_is_counted_as_refused(
    triton: EmbeddedTriton, gate: Any, serve_here: Make, new_connection: Make
) -> None:
    proxy = serve_here(
        [triton],
        limits={
            "max_queue_size": 20,
            "reserved_queue_fraction_per_client": 0.1,
            "reserved_queue_fraction_per_model": 0.0,
        },
    )
    crowd, neighbor = new_connection(proxy), new_connection(proxy)
    message = request_of("gated", {"X": ROW}).SerializeToString()
    calls = [crowd(message, timeout=60) for _ in range(20)]
    eventually(lambda: proxy.engine.tally.accepted == 20, "the queue to be full")
    refused = crowd(message, timeout=60)
    assert refused.code() is grpc.StatusCode.UNAVAILABLE
    assert "Exceeds maximum queue size" in refused.details()
    calls.append(neighbor(message, timeout=60))
    eventually(lambda: proxy.engine.tally.accepted == 21, "the neighbor to be admitted")
    gate.open()
    for under_way in calls:
        under_way.result()
    assert proxy.serving.driver.clients.held_bytes == 0
    assert _metrics(proxy).count('tidegate_queue_rejected_total{model="gated",reason="requests"} 1.0') == 1


def test_one_client_cannot_hold_all_that_may_be_in_flight(
    triton: EmbeddedTriton, gate: Any, serve_here: Make, new_connection: Make
) -> None:
    proxy = serve_here([triton], limits={"max_bytes_in_flight": 8 << 20})
    crowd, neighbor = new_connection(proxy), new_connection(proxy)
    message = request_of("gated", {"X": np.ones((1, 250_000), np.float32)}).SerializeToString()
    calls = []
    for held in range(1, 5):
        calls.append(crowd(message, timeout=60))
        eventually(lambda held=held: proxy.engine.tally.accepted == held, "it to be held")
    for _ in range(3):
        refused = crowd(message, timeout=60)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "limits.max_bytes_in_flight" in refused.details()
    calls.append(neighbor(message, timeout=60))
    eventually(lambda: proxy.engine.tally.accepted == 5, "the neighbor to be admitted")
    gate.open()
    for under_way in calls:
        under_way.result()
    eventually(lambda: proxy.serving.bounds.in_flight_bytes == 0, "all to be given back")
    assert not proxy.serving.bounds._in_flight_of
    assert crowd(request_of("gated", {"X": ROW}).SerializeToString(), timeout=60).code() is grpc.StatusCode.OK


def test_owners_of_http_requests_are_those_of_their_headers_and_are_recorded(
    triton: EmbeddedTriton, serve_here: Make, call: Make, open_stream: Make, tmp_path: Path
) -> None:
    proxy = serve_here(
        [triton],
        tritons=[{"grpc": triton.grpc_address, "http": triton.http_address}],
        listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
        clients=TENANTS,
        event_log=tmp_path / "log",
    )
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})
    for headers in ({"Tenant-ID": "over http"}, {}):
        connection = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
        connection.request("POST", "/v2/models/echo/infer", body, headers)
        assert connection.getresponse().status == 200
        connection.close()
    stream = open_stream(proxy, [request_of("echo", {"X": ROW})], metadata=(("tenant-id", "by stream"),))
    assert rest_of(stream)[1] is grpc.StatusCode.OK
    proxy.stop()
    with (tmp_path / "log").open("rb") as lines:
        _, entries = read_log(lines)
        owners = [entry.event.request.client for entry in entries if isinstance(entry.event, RequestArrived)]
    assert owners == ["over http", "", "by stream"]
