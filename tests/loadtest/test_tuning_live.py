"""The policy is tuned live: a real tritonserver, one step of the load, and every request has an outcome."""

from pathlib import Path
from typing import Any

import pytest

from tidegate.observation import PolicyChanged, PolicyTuned, read_log
from tidegate.workload import Scenario
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.scenario_run import plan_runs, run_live

pytestmark = [pytest.mark.usefixtures("start_triton"), pytest.mark.slow]  # skips where there is no tritonserver

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "warmup_s": 0,
    "duration_s": 90,
    "workers": [{"count": 1}],
    "models": [{"name": "m", "slo_ms": 300, "profile": {"alpha_ms": 4, "beta_ms": 40, "max_batch": 16}}],
    "arrivals": {
        "process": "poisson",
        "rate_rps": [{"from_s": 0, "rate_rps": 8}, {"from_s": 10, "rate_rps": 60}],
    },
    "policies": [{"name": "auto", "options": {"deadline_margin_ms": 200}}],
}
"""A margin that is harmless at light load, and after the step leaves no time for batches."""


def test_a_step_of_the_load_changes_the_policy_and_loses_nothing(tmp_path: Path) -> None:
    scenario = Scenario.model_validate(DOCUMENT)
    (run,) = plan_runs(scenario, [], [1], SendingOptions({}))
    row = run_live(run, work=tmp_path).result.total
    assert row.failed == row.stranded == 0
    assert row.answered + sum(row.dropped.values()) == row.accepted
    _, entries = read_log((tmp_path / "events.jsonl").read_bytes().splitlines(keepends=True))
    events = [entry.event for entry in entries]
    verdicts = [event for event in events if isinstance(event, PolicyTuned)]
    (first, *_) = [event for event in events if isinstance(event, PolicyChanged)]
    (why, *_) = [verdict for verdict in verdicts if verdict.verdict == "replaced"]
    assert why.policy.startswith(first.policy)
    assert why.gain is not None and why.gain[0] > 0
    assert why.reason.endswith("in two windows")
