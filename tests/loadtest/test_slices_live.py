"""MIG slices as emulated GPUs, each behind a real tritonserver, from one layout: ELSA and FIFS, live and simulated."""

from pathlib import Path
from typing import Any

import pytest

from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import Scenario
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.scenario_run import plan_runs, run_live

pytestmark = [pytest.mark.usefixtures("start_triton"), pytest.mark.slow]  # skips where there is no tritonserver

DEVICE = {"node": "n", "id": 0, "product": "A100-80GB"}
SLICES = {"1g.10gb": 6, "2g.20gb": 4, "4g.40gb": 0}
"""Where each begins, smallest first: so FIFS prefers the smallest, too, but for whatever comes."""
SMALL, LARGEST_ON_SMALL = "A100-80GB/1g.10gb-0", 3
"""A worker, and the most rows that it answers within the SLA."""
LAYOUT: dict[str, Any] = {
    "kind": "layout",
    "models": [{"name": "m", "slo_ms": 500, "pipelines": [{"partitions": ["m"], "batch": 8}]}],
    "partitions": [
        {
            "name": "m",
            "model": "m",
            "blocks": [0, 1],
            "latency_ms": {
                "A100-80GB/1g.10gb": [120.0 * rows for rows in range(1, 9)],
                "A100-80GB/2g.20gb": [30.0 + 40 * rows for rows in range(1, 9)],
                "A100-80GB/4g.40gb": [30.0 + 20 * rows for rows in range(1, 9)],
            },
        }
    ],
    "workers": [
        {
            "name": f"A100-80GB/{profile}-{number}",
            "device": DEVICE,
            "slice": {"type": "mig", "profile": profile, "start": start},
            "hosts": ["m"],
        }
        for number, (profile, start) in enumerate(SLICES.items())
    ],
}
SCENARIO = Scenario.model_validate(
    {
        "warmup_s": 0.5,
        "duration_s": 4,
        "layout": LAYOUT,
        "models": [
            {
                "name": "m",
                "scheduling": "unbatched",
                "rows": {"distribution": "table", "values": [1, 2, 3, 8], "weights": [4, 3, 2, 3]},
            }
        ],
        "arrivals": {"rate_rps": 8},
        "policies": [{"name": "elsa"}, {"name": "fifs", "options": {"max_rows": 1}, "label": "fifs"}],
    }
)


def rows_on_small(result: RunResult) -> set[int]:
    return {bar.rows for bar in result.gantt if bar.worker == SMALL}


@pytest.mark.parametrize("policy", ["elsa", "fifs"])
def test_queries_of_all_sizes_on_slices(policy: str, tmp_path: Path) -> None:
    (run,) = plan_runs(SCENARIO, [policy], [3], SendingOptions({}), gantt_s=4)
    simulated = simulate(RunSpec(SCENARIO, run.policy, 3, gantt_s=4))
    live = run_live(run, work=tmp_path).result
    row, other = live.total, simulated.total
    assert row.accepted == other.accepted
    assert (row.answered + sum(row.dropped.values()), row.failed, row.stranded) == (row.accepted, 0, 0)
    assert row.busy_shares.keys() == other.busy_shares.keys()
    assert rows_on_small(simulated), "the smallest slice works"
    if policy == "elsa":
        for result in (simulated, live):
            assert max(rows_on_small(result), default=0) <= LARGEST_ON_SMALL, "no query goes where it is late"
        assert other.attainment == 1
    else:
        assert max(rows_on_small(simulated)) > LARGEST_ON_SMALL, "the first idle slice takes whatever comes"
        assert other.late, "and some of it is late there"
