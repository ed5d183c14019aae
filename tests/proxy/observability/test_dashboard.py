"""The Grafana dashboard and the reference, beside the metrics that there are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tests.proxy.observability.followed import Followed
from tidegate.api import Batch, Model, Request, RequestArrived, Setup, Stage, StageFinished, Worker
from tidegate.engine import StartStage
from tidegate.observation import ChangeProgressed
from tidegate_proxy.app.tuning import policy_tuning
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.observability.metrics_registry import registry_of
from tidegate_proxy.observability.model_statistics import ModelStatistics
from tidegate_proxy.observability.triton_metrics import REQUEST_METRICS, merge, request_metrics
from tidegate_proxy.rollout import canary, comparison, shadow
from tidegate_proxy.rollout.versions import VersionRollouts
from tidegate_proxy.service import on_demand
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.transport.liveness import Liveness
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog

ROOT = Path(__file__).parents[3]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/tidegate.json").read_text())
REFERENCE = (ROOT / "docs/reference/metrics.md").read_text()
OF_GPUS = {"nv_gpu_utilization", "nv_gpu_memory_used_bytes"}
"""Printed by a Triton that has a GPU."""
TARGETS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def _exported() -> dict[str, set[str]]:
    """Every series' name on a page of Tidegate, with its labels."""
    setup = Setup((Model("m", 4, slo_ns=20_000_000, slo_gap_ns=1),), (Worker(0, "w", ("m",)),), ())
    faults.report("a test", ValueError("of no meaning"))
    bounds = ClientBounds()
    bounds.count("http", "max_connections")
    bounds.connections["http"] = 1
    ejections = {"h:1": (1, True)}
    metrics = Followed(setup)
    started = StartStage(Batch(0, "m", (0,), (Stage(0, "m", 0, 1),)), 0, 1)
    metrics.handled(RequestArrived(0, Request(0, "m", 1, 0, shape="x:3")), [started], 1)
    metrics.handled(StageFinished(1, 0, 0, 0, 0, 1), [], 1)
    metrics.handled(ChangeProgressed(1, 1, "starting", gpus=1), [], 1)
    metrics.handled(ChangeProgressed(1, 1, "undone", gpus=1), [], 1)
    metrics.counts.verified["m", "same"] = 1
    metrics.account({"default": 1.0}, lambda: {"tenant": 1})
    metrics.passed_through("m", ok=True)
    metrics.responded("m", 1)
    registry = registry_of(metrics.snapshot(), "fifs", 0, ejections, bounds, {"w": 1}, [("h:1", "grpc", "trace")])
    own = generate_latest(registry).decode() + _liveness() + _trial()
    statistics = ModelStatistics()
    statistics.declare("m", ["1"])
    page = merge(own, request_metrics(statistics.snapshot(), {}), {"h:1": None}, ["m"])
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for each in family.samples:
            # The parser gives Triton's counters the suffix that OpenMetrics wants.
            name = each.name.removesuffix("_total") if each.name.startswith("nv_") else each.name
            found.setdefault(name, set()).update(each.labels)
    return found


def _liveness() -> str:
    registry, liveness = CollectorRegistry(), Liveness(SettingsHolder())
    liveness.watch("engine", lambda: 0)
    registry.register(liveness)
    return generate_latest(registry).decode()


class _Said(Collector):
    """What shadow mode, a canary, a tuner and models on demand show."""

    def collect(self) -> Iterator[Metric]:
        estimate = {"model": "m", "measured": 0.8, "batcher": 0.8, "tuned": 0.8, "policy": 0.9, "gain": [0.05, 0.15]}
        side = comparison.TrafficGroup(300, 300, 0.9, 10.0, 20.0)
        yield from shadow.gauges([estimate])
        compared = comparison.ModelComparison("m", side, side, (-0.01, 0.01), "")
        yield from canary.gauges([compared])
        yield from policy_tuning.metrics_of((0.01, 0.02), 1.0)
        yield from on_demand.metrics_of({"m": 2}, {"m": 1}, {"m": 1}, {"h:1": (2, 1)})
        yield from self._rollouts(compared)

    @staticmethod
    def _rollouts(compared: comparison.ModelComparison) -> Iterator[Metric]:
        versions = {"m": {"stable": 1, "candidate": 2, "shadow": 0.1}}
        config = read_config(flags={"tritons": ["h:1"], "rollouts": {"versions": versions}})
        rollouts = VersionRollouts(config, CurrentCatalog(Catalog()))
        rollout = rollouts.of_model["m"]
        rollout.responses.add((b"", 1), (b"", 1), "")
        rollout.requests._compared["attainment"] = compared
        yield from rollouts.collect()


def _trial() -> str:
    registry = CollectorRegistry()
    registry.register(_Said())
    return generate_latest(registry).decode()


def _parse(expression: str) -> object:
    plain = expression.replace("$__rate_interval", "5m").replace("$model", ".*")
    assert "$" not in plain
    return promql_parser.parse(plain)


def _selectors(expression: Any) -> Iterator[Any]:
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from _selectors(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from _selectors(inner)


def test_grafana_reads_it() -> None:
    """Every field is one that Grafana's own types know, and keeps its value."""
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))

    def check(ours: object, theirs: object, where: str) -> None:
        if isinstance(ours, dict) and isinstance(theirs, dict):
            for name, value in ours.items():
                assert name in theirs, f"{where}.{name} is unknown to Grafana"
                check(value, theirs[name], f"{where}.{name}")
        elif isinstance(ours, list) and isinstance(theirs, list):
            assert len(ours) == len(theirs), where
            for index, pair in enumerate(zip(ours, theirs, strict=True)):
                check(*pair, f"{where}[{index}]")
        else:
            assert ours == theirs, where

    check(DASHBOARD, read, "dashboard")


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)


def test_source_and_model_are_chosen_by_variables() -> None:
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "model"]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if panel["type"] != "row"} == {"${datasource}"}


def test_a_query_asks_for_what_is_exported_and_groups_by_labels_that_are_there() -> None:
    exported = _exported()
    for expression in TARGETS:
        selectors = list(_selectors(_parse(expression)))
        assert selectors, expression
        for selector in selectors:
            assert selector.name in exported.keys() | OF_GPUS, expression
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= exported.get(selector.name, labels), expression
        labels = set().union(*(exported.get(selector.name, set()) for selector in selectors))
        for grouping in re.findall(r"\bby \(([^)]*)\)", expression):
            assert set(grouping.split(", ")) <= labels, expression


def test_the_variable_asks_for_what_is_exported() -> None:
    asked = DASHBOARD["templating"]["list"][1]["query"]["query"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", asked)
    assert found
    assert found[2] in _exported()[found[1]]


def test_every_metric_is_in_the_reference_with_its_labels() -> None:
    rows = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \|", REFERENCE, re.M)
    }
    exported = _exported()
    families = {
        re.sub(r"_(bucket|sum|count)$", "", name) if name.startswith("tidegate_") else name for name in exported
    }
    for name in families:
        if name.startswith("process_"):
            assert f"`{name}`" in REFERENCE
            continue
        labels = exported.get(name, exported.get(f"{name}_count", set()))
        assert labels <= rows[name], name
    assert rows.keys() == {name for name in families if not name.startswith("process_")}
    assert set(REQUEST_METRICS) <= rows.keys()


def test_it_shows_what_operators_ask_for() -> None:
    asked = {selector.name for expression in TARGETS for selector in _selectors(_parse(expression))}
    own = {name.removesuffix("_count").removesuffix("_sum") for name in _exported() if name.startswith("tidegate_")}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert {re.sub(r"_bucket$", "", name) for name in own} <= shown
