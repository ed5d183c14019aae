"""Tenants of a scenario, live: each request shows its tenant's headers, and each tenant has its results."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.command_line import invoke
from tidegate.workload import PolicyChoice, Scenario, ScenarioError, draw_requests, read_scenario
from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.comparison.runs import compare
from tidegate_loadtest.comparison.table import tenant_cells
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.scenario_run import LiveRun, run_live
from tidegate_loadtest.tenant_headers import TenantHeaders, tenant_sections
from tidegate_proxy.configuration.config_file import read_config

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton

SCENARIO: dict[str, Any] = {
    "warmup_s": 0.1,
    "duration_s": 0.5,
    "workers": [{"count": 1}],
    "models": [
        {"name": name, "slo_ms": 60_000, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 8}}
        for name in ("echo", "text")
    ],
    "arrivals": {"process": "uniform", "rate_rps": 160},
    "tenants": [
        {"name": "shop", "models": ["echo"], "load": 3, "clients": 4, "weight": 2},
        {"name": "limited", "models": ["echo"], "requests_per_s": 1, "priority": 2},
    ],
    "priority_floors": {2: 0.1},
}


def scenario_of(**changes: Any) -> Scenario:
    return Scenario.model_validate(SCENARIO | changes)


def test_each_request_shows_its_tenant_and_each_tenant_has_its_results(triton: "FakeTriton") -> None:
    scenario = scenario_of()
    live = run_live(LiveRun(scenario, PolicyChoice(name="fake"), 1, SendingOptions({}), triton.target))
    requests = draw_requests(scenario, 1)
    assert requests.tenancy is not None
    shown = Counter((each.get("x-tenant"), each.get("x-client")) for each in triton.headers)
    drawn = Counter(
        (("shop", "limited")[tenant], f"{('shop', 'limited')[tenant]}/{client}") if tenant >= 0 else (None, None)
        for tenant, client in zip(requests.tenancy.tenant, requests.tenancy.client, strict=True)
    )
    assert shown == drawn
    assert len(drawn) == 4 + 1 + 1
    shop, limited = live.result.tenants
    assert shop.requests + limited.requests == live.result.rows[1].accepted
    assert shop.offered_rps == pytest.approx(shop.requests / 0.5)
    assert (shop.attainment, shop.rate_limited) == (1, 0)
    assert limited.rate_limited == limited.requests > 0, "the server decides, not the draw"
    assert (shop.worker_s, shop.worker_fraction) == (None, None)
    assert live.result.total.dropped == {"rate_limited": limited.requests}
    assert live.result.total.failed == 0


def test_a_tenant_shows_its_own_headers_and_its_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("# of the shop\nsha256:" + "0" * 64 + "\ns3cret  # until May\n")
    tenants = [
        {"name": "shop", "headers": {"x-tenant": "SHOP", "x-team": "a"}, "credentials_file": "token"},
    ]
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO | {"tenants": tenants}))
    scenario = read_scenario(path)
    headers = dict(TenantHeaders(draw_requests(scenario, 1), scenario.folder)(0))
    assert headers == {
        "x-client": "shop/0",
        "x-tenant": "SHOP",
        "x-team": "a",
        "authorization": "Bearer s3cret",
    }
    assert "s3cret" not in scenario.model_dump_json()


@pytest.mark.parametrize(
    ("tenant", "words"),
    [
        ({"headers": {"X-Team": "a"}}, "headers: 'X-Team' of the tenant 't' is no gRPC metadata key: write lower-case"),
        ({"headers": {"x-team-bin": "a"}}, "'x-team-bin' of the tenant 't' is no gRPC metadata key"),
        ({"headers": {"x-team": "ä"}}, "headers: x-team of the tenant 't' is 'ä': write printable ASCII"),
    ],
)
def test_headers_that_cannot_be_sent(tmp_path: Path, tenant: dict[str, Any], words: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO | {"tenants": [{"name": "t", **tenant}]}))
    with pytest.raises(ScenarioError) as raised:
        read_scenario(path)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "token: No such file or directory; it must hold the bearer token of a tenant"),
        ("# none\n", "token: it has no credential in clear"),
        ("gehéim\n", "token: its first credential in clear cannot be sent: write a token of printable ASCII"),
        ("sha256:" + "0" * 64, "token: it has no credential in clear, and a request has to show one: write a token"),
    ],
)
def test_a_token_that_cannot_be_shown_ends_the_run_before_any_load(
    triton: "FakeTriton", tmp_path: Path, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / "token").write_text(text)
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO | {"tenants": [{"name": "t", "credentials_file": "token"}]}))
    done = invoke("loadtest", path, "--target", triton.target)
    assert done.exit_code == 1
    assert words in done.stderr
    with pytest.raises(LoadTestError, match="token"):
        compare(read_scenario(path), [Target("t", triton.target)], SendingOptions({}), rounds=1, seed=1)
    assert triton.requests == []


@pytest.mark.parametrize("headers", [{}, {"x-tenant": "ZH"}, {"x-client": "ZH/0"}])
def test_a_name_that_no_header_can_hold_ends_the_run_before_any_load(
    triton: "FakeTriton", tmp_path: Path, headers: dict[str, str]
) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO | {"tenants": [{"name": "Zürich", "headers": headers}]}))
    done = invoke("loadtest", path, "--target", triton.target)
    assert done.exit_code == 1
    assert "tenants: the name 'Zürich' goes out as x-tenant and x-client: write printable ASCII, " in done.stderr
    assert triton.requests == []


def test_a_name_of_any_letters_needs_headers_of_its_own() -> None:
    scenario = scenario_of(tenants=[{"name": "Zürich", "headers": {"x-tenant": "ZH", "x-client": "ZH/0"}}])
    headers = dict(TenantHeaders(draw_requests(scenario, 1), scenario.folder)(0))
    assert headers == {"x-tenant": "ZH", "x-client": "ZH/0"}


def test_the_command_prints_and_writes_each_tenant(triton: "FakeTriton", tmp_path: Path) -> None:
    path, out, page = (tmp_path / name for name in ("scenario.yaml", "live.json", "live.html"))
    path.write_text(yaml.safe_dump(SCENARIO))
    for rates in ((), ("--rates", "160,200")):
        done = invoke("loadtest", path, "--target", f"t={triton.target}", "-o", out, "--html", page, *rates)
        assert done.exit_code == 0, done.output
        assert "rate limited" in done.stdout
        written = json.loads(out.read_text())["tenants"]
        assert [each["tenant"] for each in written] == ["shop", "limited"] * (len(rates) or 1)
        assert all(each["offered_rps"] > 0 and each["worker_s"] is None for each in written)
        assert "rate limited" in page.read_text()


def test_a_comparison_has_each_tenant_of_each_target(triton: "FakeTriton") -> None:
    targets = [Target(name, triton.target) for name in ("a", "b")]
    compared = compare(scenario_of(), targets, SendingOptions({}), rounds=1, seed=1)
    cells = tenant_cells(compared)
    assert [row[:2] for row in cells] == [["shop", "a"], ["shop", "b"], ["limited", "a"], ["limited", "b"]]
    assert [row[3:] for row in cells] == [["100.0%", "0.0%"]] * 2 + [["100.0%", "100.0%"]] * 2
    written = comparison_document(compared)["tenants"]
    assert [(each["target"], each["tenant"], each["round"]) for each in written] == [
        (target, tenant, 1) for target in ("a", "b") for tenant in ("shop", "limited")
    ]


def test_an_emulated_tidegate_knows_the_tenants(tmp_path: Path) -> None:
    scenario = scenario_of(tenants=[*SCENARIO["tenants"], {"name": "other", "headers": {"x-tenant": "OTHER"}}])
    file = tmp_path / "tidegate.json"
    file.write_text(json.dumps(tenant_sections(scenario)))
    config = read_config(file, {"tritons": ["localhost:1"]})
    assert config.tenants is not None
    shop, limited, other = (config.tenants.named[name] for name in ("shop", "limited", "other"))
    assert (shop.weight, shop.requests_per_s, limited.requests_per_s, limited.priority) == (2, None, 1, 2)
    assert (shop.values, other.values) == (("shop",), ("OTHER",))
    assert (config.tenants.key, config.clients.key) == ("x-tenant", "x-client")
    assert config.priority_floors == {2: 0.1}
    assert tenant_sections(scenario_of(tenants=[], priority_floors={})) == {}
