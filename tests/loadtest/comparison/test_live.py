"""Comparisons on the real tritonserver."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command_line import invoke
from tidegate.workload import Scenario
from tidegate_loadtest.comparison.findings import COMPARED_FIGURES, interval_of, verdicts, warnings
from tidegate_loadtest.comparison.runs import Comparison, compare
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.emulated import write_emulated_model
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.open_loop import Progress
from tidegate_proxy.tritons.embedded import EmbeddedTriton

StartTriton = Callable[..., EmbeddedTriton]
pytestmark = pytest.mark.usefixtures("start_triton")  # skips where there is no tritonserver

PROFILE = {"alpha_ms": 2, "beta_ms": 40, "max_batch": 16}


def scenario_at(rate_rps: float, duration_s: float) -> Scenario:
    return Scenario.model_validate(
        {
            "warmup_s": 0.2,
            "duration_s": duration_s,
            "workers": [{"count": 1}],
            "models": [{"name": "m", "slo_ms": 300, "profile": PROFILE}],
            "arrivals": {"process": "uniform", "rate_rps": rate_rps},
        }
    )


def serve(start: StartTriton, scenario: Scenario, folder: Path, *, batching: bool) -> EmbeddedTriton:
    write_emulated_model(
        folder, scenario, scenario.models[0], scenario.workers, seed=1, batching={} if batching else None
    )
    return start([folder])


def mean_of(compared: Comparison, target: Target, name: str) -> float:
    interval = interval_of(compared, target, next(figure for figure in COMPARED_FIGURES if figure.name == name))
    assert interval is not None
    return interval.mean


@pytest.mark.slow
def test_who_batches_is_told_from_who_does_not_whatever_its_place(start_triton: StartTriton, tmp_path: Path) -> None:
    scenario = scenario_at(60, 1.5)  # one by one it can answer 24 a second
    alone = Target("alone", serve(start_triton, scenario, tmp_path / "alone", batching=False).grpc_address)
    batched = Target("batched", serve(start_triton, scenario, tmp_path / "batched", batching=True).grpc_address)
    unhurried = SendingOptions({}, lateness_limit_ms=1000)  # a busy machine sends late
    compared = compare(scenario, [alone, batched], unhurried, rounds=3, seed=1)
    (verdict,) = verdicts(compared)
    assert verdict.startswith("batched has ")
    (verdict,) = verdicts(replace(compared, targets=[batched, alone]))
    assert verdict.startswith("alone has ")
    assert "no dynamic_batching" in compared.settings["alone"].models[scenario.models[0].name]
    assert "dynamic_batching (delay 0 ms" in compared.settings["batched"].models[scenario.models[0].name]
    assert mean_of(compared, alone, "mean_batch_rows") == 1
    assert mean_of(compared, batched, "mean_batch_rows") > 1  # 60 come in a second, of which it can answer 24 alone


def test_a_server_that_is_killed_half_way_fails_its_requests_and_ends_the_comparison(
    start_triton: StartTriton, tmp_path: Path
) -> None:
    scenario = scenario_at(20, 2.5)
    steady = serve(start_triton, scenario, tmp_path / "steady", batching=True)
    killed = serve(start_triton, scenario, tmp_path / "killed", batching=True)

    def shown(done: int, _name: str, progress: Progress) -> None:
        if done == 1 and progress.answered > 5:
            killed.stop()

    targets = [Target("steady", steady.grpc_address), Target("killed", killed.grpc_address)]
    compared = compare(scenario, targets, SendingOptions({}, timeout_s=60), rounds=3, seed=1, shown=shown)
    assert [live.run.policy.title for live in compared.lives] == ["steady", "killed"]
    assert compared.complete == [1]
    assert compared.stopped is not None
    assert compared.stopped.startswith(f"round 2 of 3, killed: {killed.grpc_address}: ")
    whole, half = (live.result.total for live in compared.lives)
    assert whole.failed == 0
    assert half.answered > 0
    assert 0 < half.failed == half.accepted - half.answered
    said = warnings(compared)
    assert said[:2] == [
        f"ended early: {compared.stopped}",
        "only 1 of 3 rounds are complete: the figures are of these",
    ]
    failures = next(line for line in said if " requests failed; " in line)
    assert failures.startswith(f"killed: {half.failed} of {half.accepted} requests failed; first CONNECTION_LOST: ")


SCENARIO = """
warmup_s: 0.2
duration_s: 1
workers: [{count: 2}]
models: [{name: m, slo_ms: 400, profile: {alpha_ms: 2, beta_ms: 20, max_batch: 8}}]
arrivals: {rate_rps: 30}
policies: [{name: symphony}, {name: triton}, {name: fifs}]
"""


@pytest.mark.slow
def test_without_targets_the_policies_get_emulated_clusters(tmp_path: Path) -> None:
    path, document = tmp_path / "scenario.yaml", tmp_path / "c.json"
    path.write_text(SCENARIO)
    chosen = ["--policy", "triton", "--policy", "symphony", "--rounds", "1"]
    done = invoke("compare", path, *chosen, "-o", document)
    assert done.exit_code == 0, done.output
    rows = [row for row in json.loads(document.read_text())["rows"] if row["model"] == "*"]
    assert [row["target"] for row in rows] == ["triton", "symphony"]
    assert all(row["failed"] == row["stranded"] == 0 for row in rows)
    assert all(row["mean_batch_rows"] >= 1 for row in rows)


def test_more_than_a_machine_can_hold_is_not_started(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO.replace("count: 2", "count: 50"))
    done = invoke("compare", path)
    assert done.exit_code == 1
    assert "150 models on the workers of 3 policies" in done.stderr
