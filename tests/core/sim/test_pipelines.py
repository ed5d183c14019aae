"""Split models in a scenario: what policies are told, and how first come, first served runs them."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.core.schemas.test_layout import LAYOUT
from tidegate.api import Network, Pipeline
from tidegate.host import PluginError
from tidegate.sim.build import setup_of
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, read_scenario

SPLIT: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 1,
    "workers": [
        {"count": 3, "gpu": "slow", "node": "s", "per_node": 2, "hosts": ["m.a"]},
        {"count": 1, "gpu": "fast", "node": "f", "hosts": ["m.b"]},
    ],
    "network": {"gbps": 8},
    "models": [
        {
            "name": "m",
            "slo_ms": 50,
            "pipelines": [
                {
                    "batch": 4,
                    "partitions": [
                        {"name": "m.a", "profile": {"alpha_ms": 2, "beta_ms": 8}, "output_bytes": 1_000_000},
                        {"name": "m.b", "profiles": {"fast": {"alpha_ms": 1, "beta_ms": 4}}},
                    ],
                }
            ],
        }
    ],
    "arrivals": {"process": "uniform", "rate_rps": 50},
}
FIFS = PolicyChoice(name="fifs")


def test_policies_are_told_of_pipelines_nodes_and_the_network() -> None:
    setup = setup_of(Scenario.model_validate(SPLIT), seed=0)
    (model,) = setup.models
    assert (model.max_rows, model.pipelines) == (4, (Pipeline(("m.a", "m.b"), 4),))
    assert [worker.node for worker in setup.workers] == ["s-0", "s-0", "s-1", "f"]
    assert {(profile.partition, profile.device_class, profile.max_rows) for profile in setup.profiles} == {
        ("m.a", "slow", 4),
        ("m.b", "fast", 4),
    }
    assert setup.network == Network({"m.a": 1_000_000, "m.b": 0}, 1e9)


def test_a_model_in_one_partition_of_another_name_runs() -> None:
    part = {"name": "m.all", "profile": {"alpha_ms": 2, "beta_ms": 8}}
    model = {**SPLIT["models"][0], "pipelines": [{"batch": 4, "partitions": [part]}]}
    scenario = {**SPLIT, "models": [model], "workers": [{"count": 1, "gpu": "slow", "hosts": ["m.all"]}]}
    total = simulate(RunSpec(Scenario.model_validate(scenario), FIFS, seed=0)).total
    assert total.answered == total.accepted == 50


def test_first_come_first_served_runs_them_stage_after_stage() -> None:
    """10 ms on the slow worker, 1 ms on the link, 5 ms on the fast one, whose pool bounds the rate."""
    total = simulate(RunSpec(Scenario.model_validate(SPLIT), FIFS, seed=0)).total
    assert total.answered == total.accepted == 50
    assert total.p50_ms == 16
    assert total.batches == 100, "stages"


def test_other_policies_say_that_they_cannot() -> None:
    with pytest.raises(PluginError, match="'symphony': it schedules whole models only, and 'm' is split"):
        simulate(RunSpec(Scenario.model_validate(SPLIT), PolicyChoice(name="symphony"), seed=0))


def test_a_layout_stands_for_models_workers_and_network(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(json.dumps(LAYOUT))
    path = tmp_path / "scenario.yaml"
    path.write_text("{layout: layout.json, duration_s: 1, arrivals: {rate_rps: 20, process: uniform}}")
    scenario = read_scenario(path)
    setup = setup_of(scenario, seed=0)
    assert [(worker.hosts, worker.device_class, worker.node) for worker in setup.workers] == [
        (("a",), "P4", "one"),
        (("b",), "L4/mps-50", "two"),
    ]
    total = simulate(RunSpec(scenario, FIFS, seed=0)).total
    assert (total.answered, total.late) == (20, 0)
    assert total.p50_ms == pytest.approx(3 + 0.001 + 0.5 + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "layout.json"}, "workers: comes from the layout"),
        ({"workers": [{"count": 1, "gpu": "slow", "hosts": ["m"]}]}, "'m' is no model and no partition of one"),
        ({"workers": SPLIT["workers"][:1]}, "none hosts 'm.b'"),
        ({"workers": [{"count": 1, "gpu": "slow"}]}, "profiles: 'm.b' has none for 'slow'"),
        ({"models": [{**SPLIT["models"][0], "max_batch": 4}]}, "leave those out"),
        ({"simulation": {"service": {"m": {}}}}, "'m' is no model of this scenario, nor a partition"),
    ],
)
def test_what_does_not_add_up_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Scenario.model_validate(SPLIT | change)
