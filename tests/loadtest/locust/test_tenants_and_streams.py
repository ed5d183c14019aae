"""Locust shows the headers of tenants, and reports tenants, first responses and gaps of streams."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tidegate.workload import draw_requests, read_scenario

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton
    from tests.loadtest.locust.conftest import StartLocust

HEADLESS = ("--headless", "--only-summary")
TENANTS = [{"name": "shop", "load": 3, "clients": 2}, {"name": "limited"}]


def with_changes(path: Path, **changes: object) -> Path:
    document = yaml.safe_load(path.read_text())
    document["models"][0] |= changes.pop("model", {})
    path.write_text(yaml.safe_dump(document | changes))
    return path


def test_requests_show_their_tenants(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path]
) -> None:
    path = with_changes(scenario(), tenants=TENANTS)
    locust = start_locust(*HEADLESS, "--host", triton.target, "--scenario", path)
    assert locust.ended() == 1, "rejected requests have no answer"
    requests = draw_requests(read_scenario(path), 0)
    assert requests.tenancy is not None
    drawn = Counter(requests.tenancy.specs[tenant].name for tenant in requests.tenancy.tenant)
    assert Counter(headers["x-tenant"] for headers in triton.headers) == drawn
    assert {headers["x-client"] for headers in triton.headers} == {"shop/0", "shop/1", "limited/0"}
    shop, limited, model = (locust.row(line) for line in ("tenant shop", "tenant limited", "echo"))
    assert (shop["attainment"], shop["failed"]) == ("100.00%", "0")
    assert limited["failed"] == f"{limited['requests']} rate_limited"
    assert int(shop["requests"]) + int(limited["requests"]) == int(model["requests"])


def test_streams_have_first_responses_and_gaps(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path]
) -> None:
    """Of four streams one is rejected; the others have three responses, no two at one instant."""
    streaming = {"responses": 3, "gap_ms": 10, "slo_gap_ms": 1e-6}
    changes = {"rows": 1, "profile": {"points_ms": {1: 1}, "max_batch": 1}, "streaming": streaming}
    path = with_changes(scenario("tokens"), model=changes)
    locust = start_locust(*HEADLESS, "--host", triton.target, "--scenario", path)
    assert locust.ended() == 1, locust.output
    first, gaps = locust.row("tokens"), locust.row("tokens gap")
    assert first["failed"].endswith(" timeout")
    answered = int(first["requests"]) - int(first["failed"].removesuffix(" timeout"))
    assert answered == int(gaps["requests"]) > 0
    assert (gaps["slo_ms"], gaps["attainment"], gaps["failed"]) == ("1e-06", "0.00%", "0")
    refused = start_locust("--headless", "--host", triton.target, "--scenario", path, "--protocol", "http")
    assert refused.ended() == 1
    assert "tokens has `streaming`, and HTTP gives one response: use --protocol grpc" in refused.output


@pytest.mark.slow
def test_a_closed_loop_of_streams(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path]
) -> None:
    changes = {"rows": 1, "profile": {"points_ms": {1: 1}, "max_batch": 1}, "streaming": {"gap_ms": 10}}
    path = with_changes(scenario("tokens"), model=changes, tenants=[{"name": "shop"}])
    users = ("--closed-loop", "--users", 2, "--spawn-rate", 10, "--run-time", "1s")
    locust = start_locust(*HEADLESS, "--host", triton.target, "--scenario", path, *users)
    locust.ended()
    assert int(locust.row("tokens gap")["requests"]) > 0
    assert int(locust.row("tenant shop")["requests"]) == int(locust.row("tokens")["requests"])
