"""Grids of changes to a scenario."""

from pathlib import Path

import pytest

from tidegate.sim.run import parse_changes, parse_grid, sweep_runs
from tidegate.sim.verdicts import sweep_verdicts
from tidegate.workload import ScenarioError


def test_a_grid_is_every_combination_policy_and_seed(scenario_file: Path) -> None:
    grid = parse_grid(["models.*.slo_ms=20,40", "workers.0.count=1,2,3"])
    assert grid == {"models.*.slo_ms": [20, 40], "workers.0.count": [1, 2, 3]}
    runs = sweep_runs(scenario_file, grid, policies=["fifs"], seeds=[5, 6])
    assert len(runs) == 2 * 3 * 2
    assert [run.seed for run in runs[:4]] == [5, 6, 5, 6]
    assert runs[2].changes == {"models.*.slo_ms": 20, "workers.0.count": 2}
    last = runs[-1].scenario
    assert [model.slo_ms for model in last.models] == [40, 40]
    assert last.workers[0].count == 3


def test_without_seeds_the_scenarios_own_is_taken(scenario_file: Path) -> None:
    runs = sweep_runs(scenario_file, parse_grid(["seed=3,4"]))
    assert [(run.seed, run.policy.title) for run in runs] == [(s, p) for s in (3, 4) for p in ("fifs", "one by one")]


def test_values_may_be_anything_that_yaml_can_say() -> None:
    grid = parse_grid(
        ["arrivals={rate_rps: 5},{process: gamma, rate_rps: 5, shape: 2}", "policies.0.name=fifs,symphony"]
    )
    assert grid["arrivals"] == [{"rate_rps": 5}, {"process": "gamma", "rate_rps": 5, "shape": 2}]
    assert grid["policies.0.name"] == ["fifs", "symphony"]


def test_changes_are_a_grid_of_one_point() -> None:
    assert parse_changes(["a.b={c: 1, d: 2}", "e=3"]) == {"a.b": {"c": 1, "d": 2}, "e": 3}
    assert parse_changes([]) == {}
    with pytest.raises(ScenarioError, match="--set a: give one value"):
        parse_changes(["a=1,2"])


@pytest.mark.parametrize("texts", [["a"], ["a="], ["=1"], ["a=1", "a=2"]])
def test_what_is_no_setting_is_refused(texts: list[str]) -> None:
    with pytest.raises(ScenarioError, match=r"--set .*: give PATH=V1,V2,..., each path once"):
        parse_grid(texts)


def test_values_that_yaml_does_not_know_are_refused() -> None:
    with pytest.raises(ScenarioError, match="is no YAML"):
        parse_grid(["a={1"])


def test_every_combination_is_checked_before_any_runs(scenario_file: Path) -> None:
    with pytest.raises(ScenarioError, match=r"duration_s: must be more than 0"):
        sweep_runs(scenario_file, parse_grid(["duration_s=1,0"]))


def test_settings_with_equal_outcomes_share_a_sentence() -> None:
    lines = {name: {"50": [0.0], "90": [0.0]} for name in "abcd"}
    (sentence,) = sweep_verdicts("rate", lines, 0.01)
    assert sentence == "All 4 settings keep 99 % of every model's requests on time at all values of rate."
    assert sweep_verdicts("rate", {**lines, "d": {"50": [0.0], "90": [0.5]}}, 0.01) == [
        "a, b and c keep 99 % of every model's requests on time at all values of rate.",
        "d keeps 99 % of every model's requests on time at rate = 50.",
    ]
