"""The example of KServe and the recipe for autoscaling: pods are Kubernetes, flags and metrics exist, so do queries."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import typer
import yaml

from tests.command_line import APP

ROOT = Path(__file__).parents[2]


def _read(path: str) -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "deploy" / path).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


RUNTIME = _read("kserve/serving_runtime.yaml")
SERVICE = _read("kserve/inference_service.yaml")
KEDA = _read("autoscaling/keda.yaml")
HPA = _read("autoscaling/hpa.yaml")
RULES = _read("autoscaling/prometheus_adapter.yaml")["rules"]["external"]
QUERIES = [
    *(trigger["metadata"]["query"] for trigger in KEDA["spec"]["triggers"]),
    *(rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="x"') for rule in RULES),
]


def test_the_containers_of_the_runtime_are_those_of_a_pod() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "models"},
        "spec": {"containers": RUNTIME["spec"]["containers"]},
    }
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_the_autoscaler_is_kubernetes() -> None:
    kubernetes_validate.validate(HPA, kubernetes_validate.latest_version(), strict=True)


def test_tidegate_has_the_only_port_and_stands_before_the_triton_of_its_pod() -> None:
    triton, tidegate = RUNTIME["spec"]["containers"]
    assert (triton["name"], tidegate["name"]) == ("kserve-container", "transformer-container")
    assert "ports" not in triton
    flags = dict(argument.removeprefix("--").split("=") for argument in tidegate["args"][1:])
    assert flags["triton"] == "localhost:8001"
    (port,) = tidegate["ports"]
    assert flags["listen-http"] == f"0.0.0.0:{port['containerPort']}"
    scraped = RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"]
    assert flags["listen-metrics"] == f"0.0.0.0:{scraped}"
    probes = (tidegate[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe"))
    assert set(probes) == {port["containerPort"]}


def test_every_flag_is_one_of_serve() -> None:
    (_, tidegate) = RUNTIME["spec"]["containers"]
    name, *arguments = tidegate["args"]
    commands = typer.main.get_command(APP)
    known = {flag for each in commands.commands[name].params for flag in each.opts}  # type: ignore[attr-defined]
    assert [argument for argument in arguments if argument.partition("=")[0] not in known] == []


def test_what_belongs_together_has_one_name() -> None:
    assert SERVICE["spec"]["predictor"]["model"]["runtime"] == RUNTIME["metadata"]["name"]
    (wanted,) = RUNTIME["spec"]["supportedModelFormats"]
    assert SERVICE["spec"]["predictor"]["model"]["modelFormat"] == wanted
    deployment = f"{SERVICE['metadata']['name']}-predictor"
    assert KEDA["spec"]["scaleTargetRef"]["name"] == HPA["spec"]["scaleTargetRef"]["name"] == deployment
    asked = [metric["external"]["metric"]["name"] for metric in HPA["spec"]["metrics"]]
    assert asked == [rule["name"]["as"] for rule in RULES]


@pytest.mark.parametrize("query", QUERIES)
def test_queries_are_promql_over_metrics_that_there_are(query: str) -> None:
    promql_parser.parse(query)
    documented = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"tidegate_\w+", query))
    assert named
    assert [name for name in named if f"| `{name}` |" not in documented] == []


def test_all_ask_the_same() -> None:
    def bare(query: str) -> str:
        return re.sub(r"\s|,?(pod=~|namespace=)\"[^\"]*\"|\{\}", "", query)

    assert [bare(query) for query in QUERIES[:2]] == [bare(query) for query in QUERIES[2:]]
    assert all(a["threshold"] == b["threshold"] for a, b in pairwise(t["metadata"] for t in KEDA["spec"]["triggers"]))
