"""What two real Tritons say of themselves, as one page and one response."""

import asyncio
import json
import socket
import urllib.request
from collections.abc import Callable

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.clients import tensors
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.observability.model_statistics import (
    FAILURE_REASONS,
    ModelStatistics,
    merge_statistics,
    statistics_json,
)
from tidegate_proxy.observability.triton_metrics import REQUEST_METRICS, merge, request_metrics
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.workers import scrape

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
OWN = "# HELP tidegate_queue_length x\n# TYPE tidegate_queue_length gauge\ntidegate_queue_length 0\n"


def _parsed(page: str) -> Series:
    """Every series; the parser refuses what is no page, and one that comes twice is found here."""
    families = list(text_string_to_metric_families(page))
    assert len({family.name for family in families}) == len(families), "HELP and TYPE once per family"
    samples = [each for family in families for each in family.samples]
    series = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
    assert len(series) == len(samples)
    return series


def _of(series: Series, name: str, **labels: str) -> float:
    # The parser gives counters the suffix that OpenMetrics wants.
    return next(
        series[each, frozenset(labels.items())]
        for each in (name, name + "_total")
        if (each, frozenset(labels.items())) in series
    )


@pytest.fixture(scope="module")
def pair(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> list[EmbeddedTriton]:
    """Two Tritons, which have answered one and two requests of each model, and failed one."""
    servers = []
    for answered in (1, 2):
        repository = tmp_path_factory.mktemp("pair")
        add_model(repository, "scheduled", "max_batch_size: 4", refuses_negative=1)
        add_model(repository, "other", "max_batch_size: 4")
        servers.append(start_triton([repository]))
        client = triton_grpc.InferenceServerClient(servers[-1].grpc_address)
        for _ in range(answered):
            for model in ("scheduled", "other"):
                client.infer(model, tensors({"X": np.ones((3, 2), np.float32)}))
        with pytest.raises(Exception, match="negative"):
            client.infer("scheduled", tensors({"X": -np.ones((1, 2), np.float32)}))
        # Triton counts an answer after it has gone.
        counted = f'nv_inference_request_success{{model="other",version="1"}} {answered}'
        eventually(lambda: counted in (_pages([servers[-1]])[servers[-1].grpc_address] or ""), "Triton to count")  # noqa: B023
        client.close()
    return servers


def _http(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as response:
        body: bytes = response.read()
    return body


def _pages(servers: list[EmbeddedTriton]) -> dict[str, str | None]:
    return asyncio.run(scrape({server.grpc_address: server.metrics_address for server in servers}))


def _asked(server: EmbeddedTriton) -> service_pb2.ModelStatisticsResponse:
    client = triton_grpc.InferenceServerClient(server.grpc_address)
    try:
        return client.get_inference_statistics()
    finally:
        client.close()


def test_both_pages_become_one(pair: list[EmbeddedTriton]) -> None:
    statistics = ModelStatistics()
    statistics.declare("scheduled", ["1"])
    statistics.answered("scheduled", "", 5, at_ms=1, total_ns=9000, queue_ns=2000, infer_ns=6000)
    statistics.failed("scheduled", "", "CANCELED", 500)
    pages = _pages(pair)
    series = _parsed(merge(OWN, request_metrics(statistics.snapshot(), {("scheduled", "1"): 7}), pages, ["scheduled"]))
    ours = {"model": "scheduled", "version": "1"}
    assert _of(series, "nv_inference_request_success", **ours) == 1
    assert _of(series, "nv_inference_count", **ours) == 5
    assert _of(series, "nv_inference_request_duration_us", **ours) == 9
    assert _of(series, "nv_inference_queue_duration_us", **ours) == 2
    assert _of(series, "nv_inference_request_failure", reason="CANCELED", **ours) == 1
    assert _of(series, "nv_inference_pending_request_count", **ours) == 7
    assert all(
        frozenset(ours.items()) <= labels and "triton" not in dict(labels)
        for name, labels in series
        if name.removesuffix("_total") in REQUEST_METRICS and ("model", "scheduled") in labels
    )
    for count, server in enumerate(pair, start=1):
        theirs = {"model": "other", "version": "1", "triton": server.grpc_address}
        assert _of(series, "nv_inference_request_success", **theirs) == count
        assert _of(series, "nv_inference_count", **theirs) == 3 * count
        assert _of(series, "nv_cpu_utilization", triton=server.grpc_address) >= 0
        assert _of(series, "tidegate_triton_up", triton=server.grpc_address) == 1
    assert _of(series, "tidegate_queue_length") == 0


def test_names_and_help_are_those_of_triton(pair: list[EmbeddedTriton]) -> None:
    statistics = ModelStatistics()
    statistics.declare("other", ["1"])
    ours = {family.name: family for family in request_metrics(statistics.snapshot(), {})}
    [page] = filter(None, _pages(pair[:1]).values())
    for name in REQUEST_METRICS:
        assert f"# HELP {name} {ours[name].help}\n# TYPE {name} {ours[name].type}\n" in page
        # As many series per model as Triton has, with the same labels.
        printed = {line.split(" ")[0] for line in page.splitlines() if line.startswith(f'{name}{{model="other"')}
        assert {str(each).split(" ")[0] for each in ours[name].samples} == printed
    assert len(FAILURE_REASONS) == len(ours["nv_inference_request_failure"].samples)


def test_what_no_model_is_scheduled_of_stays_as_triton_printed_it(pair: list[EmbeddedTriton]) -> None:
    [(triton, page)] = _pages(pair[:1]).items()
    assert page is not None
    whole = merge("", [], {triton: page}, [])
    assert [line for line in whole.splitlines() if "tidegate_triton_up" not in line] == page.splitlines()


def test_several_are_told_apart_by_a_last_label(pair: list[EmbeddedTriton]) -> None:
    pages = _pages(pair)
    lines = set(merge("", [], pages, []).splitlines())
    for triton, page in pages.items():
        assert page is not None
        for line in page.splitlines():
            name, brace, rest = line.rpartition("} ")
            if brace:
                assert f'{name},triton="{triton}"}} {rest}' in lines


def test_a_triton_that_does_not_answer_is_left_out(pair: list[EmbeddedTriton]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        addresses = {"mute": mute, "closed": closed}
        pages = asyncio.run(
            scrape(
                {name: f"127.0.0.1:{where.getsockname()[1]}" for name, where in addresses.items()}
                | {"there": pair[0].metrics_address, "wrong": pair[0].http_address, "nonsense": "no address"},
                timeout_s=0.5,
            )
        )
    assert [name for name, page in pages.items() if page is not None] == ["there"]
    series = _parsed(merge(OWN, [], pages, []))
    assert {name: _of(series, "tidegate_triton_up", triton=name) for name in pages} == {
        "mute": 0,
        "closed": 0,
        "there": 1,
        "wrong": 0,
        "nonsense": 0,
    }


def test_a_metric_of_our_own_name_is_ours() -> None:
    page = "# TYPE tidegate_queue_length gauge\ntidegate_queue_length 9\ntidegate_triton_up 3\n"
    series = _parsed(merge(OWN, [], {"t": page}, []))
    assert series == {
        ("tidegate_queue_length", frozenset()): 0,
        ("tidegate_triton_up", frozenset({("triton", "t")})): 1,
    }


def test_no_triton_no_extra() -> None:
    assert merge(OWN, [], {}, []) == OWN


def test_http_statistics_are_printed_as_triton_prints_them(pair: list[EmbeddedTriton]) -> None:
    printed = _http(pair[1].http_address, "/v2/models/stats")
    assert statistics_json(merge_statistics([_asked(pair[1])], {})) == printed


def test_statistics_of_both_are_one(pair: list[EmbeddedTriton]) -> None:
    statistics = ModelStatistics()
    statistics.declare("scheduled", ["1"])
    statistics.answered("scheduled", "", 3, at_ms=12345, total_ns=50, queue_ns=5, infer_ns=8)
    whole = merge_statistics(map(_asked, pair), statistics.snapshot())
    other, scheduled = json.loads(statistics_json(whole))["model_stats"]
    assert (other["inference_count"], other["execution_count"]) == (9, 3)
    assert other["inference_stats"]["success"]["count"] == 3
    assert scheduled["last_inference"] == 12345
    assert scheduled["inference_stats"]["success"] == {"count": 1, "ns": 50}
    assert scheduled["inference_stats"]["fail"] == {"count": 0, "ns": 0}
    assert {batch["batch_size"]: batch["compute_infer"]["count"] for batch in scheduled["batch_stats"]} == {1: 2, 3: 3}
