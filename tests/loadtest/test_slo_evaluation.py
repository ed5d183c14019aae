"""A live run in the columns of a simulated one."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tidegate.api import Advise, Batch, BatchFailed, Request, RequestArrived, Stage, StageFinished
from tidegate.engine import StartStage
from tidegate.observation import EngineSettings, Recorder
from tidegate.sim.build import setup_of
from tidegate.sim.result import RunResult as Figures
from tidegate.workload import PolicyChoice, Scenario, draw_requests
from tidegate_loadtest.live import LiveObservations, SendingOptions
from tidegate_loadtest.result import RunResult
from tidegate_loadtest.scenario_run import LiveRun, run_live
from tidegate_loadtest.server_stats import ServerUsage
from tidegate_loadtest.slo_evaluation import judge

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton

MS = 1_000_000
SCENARIO = Scenario.model_validate(
    {
        "warmup_s": 0.1,
        "duration_s": 1,
        "workers": [{"count": 2}],
        "models": [
            {"name": "quick", "slo_ms": 50, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 8}},
            {"name": "slow", "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 8}},
        ],
        "arrivals": {"process": "uniform", "rate_rps": 20},
    }
)
REQUESTS = draw_requests(SCENARIO, seed=1)
FIRST = 2
"""Two requests are of the warm-up."""
CLOCK_NS = 10**15
"""When the window began, on the machine's clock."""


def seen(
    latency_ms: float = 10, usage: dict[str, ServerUsage] | None = None, status_of: dict[int, str] | None = None
) -> LiveObservations:
    """Every request was answered after so long and sent 1 ms late, but for those whose status is given."""
    scheduled_ns = np.array(REQUESTS.at_ns[FIRST:], np.int64) - 100 * MS
    statuses = [(status_of or {}).get(number, "OK") for number in range(FIRST, len(REQUESTS))]
    run = RunResult(
        window_ns=1000 * MS,
        began_ns=CLOCK_NS,
        scheduled_ns=scheduled_ns,
        issued_ns=scheduled_ns + MS,
        finished_ns=scheduled_ns + round(latency_ms * MS),
        status=np.array(statuses),
    )
    return LiveObservations(run, FIRST, usage or {})


def judged(what: LiveObservations, event_log: Path | None = None) -> Figures:
    return judge(SCENARIO, REQUESTS, what, policy="p", seed=1, event_log=event_log, gantt_s=1)


def test_every_request_of_the_window_ends_once() -> None:
    statuses = {2: "timeout", 3: "queue full", 4: "CLIENT_TIMEOUT", 5: "UNAVAILABLE"}
    row = judged(seen(status_of=statuses)).total
    assert row.accepted == len(REQUESTS) - FIRST == 20
    assert (row.answered, row.late, row.failed, row.stranded) == (16, 0, 1, 1)
    assert row.dropped == {"timeout": 1, "queue full": 1}
    assert (row.attainment, row.goodput_rps, row.p50_ms) == (0.8, 16, 10)


def test_an_answer_is_late_by_the_slo_of_its_model() -> None:
    total, quick, slow = judged(seen(latency_ms=50.001)).rows
    assert (quick.late, slow.late, total.late) == (10, 0, 10)
    assert judged(seen(latency_ms=50)).total.late == 0


def test_lateness_is_a_column_of_every_row() -> None:
    assert [(row.lateness_p50_ms, row.lateness_p99_ms) for row in judged(seen()).rows] == [(1, 1)] * 3


def test_batches_of_the_event_log_are_put_on_the_clock_of_the_run(tmp_path: Path) -> None:
    def start(number: int, worker: int, *ids: int) -> StartStage:
        batch = Batch(number, "quick", ids, (Stage(worker, "quick", CLOCK_NS + 100 * MS, 7 * MS),))
        return StartStage(batch, 0, len(ids))

    with (tmp_path / "events.jsonl").open("wb") as out:
        recorder = Recorder(out)
        recorder.started("p", {}, setup_of(SCENARIO, 1), EngineSettings(learn=True, max_tries=2))
        for request in list(REQUESTS)[:3]:
            recorder.handled(RequestArrived(CLOCK_NS, request), [], [])
        arrived = RequestArrived(CLOCK_NS + 100 * MS, list(REQUESTS)[3])
        recorder.handled(arrived, [], [start(0, 0, 0, 1, 2), start(1, 1, 3), Advise(2, "more")])
        ended = (CLOCK_NS + 100 * MS, CLOCK_NS + 200 * MS)
        recorder.handled(BatchFailed(CLOCK_NS + 150 * MS, 1, 0, 1, "broken"), [], [])
        recorder.handled(StageFinished(ended[1], 0, 0, 0, *ended), [], [])
    result = judged(seen(), tmp_path / "events.jsonl")
    row = result.total
    assert row.batch_rows == {"1": 1, "3": 1}
    assert row.median_batch_rows == 2
    assert row.touched_workers == 2
    assert list(row.busy_shares.values()) == [0.1, 0.05]
    assert row.advice == {"count": 1, "least": 2, "most": 2, "last": 2}
    assert [(bar.start_s, bar.end_s, bar.rows) for bar in result.gantt] == [(0.1, 0.15, 1), (0.1, 0.2, 3)]


def test_worker_time_of_a_tenant_is_that_of_its_requests_in_the_event_log(tmp_path: Path) -> None:
    """The proxy numbers requests by itself: who sent them is in the log."""
    scenario = Scenario.model_validate(
        SCENARIO.model_dump() | {"tenants": [{"name": "a"}, {"name": "b", "requests_per_s": 1}]}
    )
    requests = draw_requests(scenario, seed=1)
    with (tmp_path / "events.jsonl").open("wb") as out:
        recorder = Recorder(out)
        recorder.started("p", {}, setup_of(scenario, 1), EngineSettings(learn=True, max_tries=2))
        sent = [("a", 1), ("a", 2), ("b", 1), ("", 4)]
        for number, (tenant, rows) in enumerate(sent, 500):
            request = Request(number, "quick", rows, CLOCK_NS, CLOCK_NS + 50 * MS, tenant=tenant)
            effects = []
            if number == 503:
                batch = Batch(0, "quick", (500, 501, 502, 503), (Stage(0, "quick", CLOCK_NS + 100 * MS, 80 * MS),))
                effects = [StartStage(batch, 0, 8)]
            recorder.handled(RequestArrived(CLOCK_NS + 20 * MS, request), [], effects)
        recorder.handled(StageFinished(CLOCK_NS + 100 * MS, 0, 0, 0, CLOCK_NS + 20 * MS, CLOCK_NS + 100 * MS), [], [])
    result = judge(scenario, requests, seen(), policy="p", seed=1, event_log=tmp_path / "events.jsonl")
    assert [each.worker_s for each in result.tenants] == pytest.approx([0.03, 0.01])
    assert sum(each.rate_limited for each in result.tenants) == 0, "the server rejected none"


def test_without_an_event_log_the_server_says_how_large_its_batches_were() -> None:
    def usage(executions_of: dict[int, int]) -> ServerUsage:
        count = sum(executions_of.values())
        return ServerUsage(count, None, 4.0, busy_ns=500 * MS, executions_of=executions_of, instances=1)

    total, quick, slow = judged(seen(usage={"quick": usage({1: 1, 4: 2}), "slow": usage({2: 2})})).rows
    assert {(row.mean_waiting_ms, row.mean_executing_ms) for row in (total, quick, slow)} == {(6, 4)}
    assert total.batch_rows == {"1": 1, "2": 2, "4": 2}
    assert (quick.median_batch_rows, quick.mean_batch_rows, slow.mean_batch_rows) == (4, 3, 2)
    assert (quick.busy_share, total.busy_share) == (0.25, 0.5)  # of two workers for a second
    assert total.touched_workers is None


def test_a_server_without_statistics_leaves_batches_open() -> None:
    row = judged(seen()).total
    assert (row.batches, row.median_batch_rows, row.busy_shares) == (0, None, {})
    assert row.goodput_rps == pytest.approx(20)


def test_streams_are_judged_by_their_first_response(triton: "FakeTriton") -> None:
    """Of four streams one is rejected; the others have three responses, ten milliseconds apart."""
    document = {
        "warmup_s": 0.2,
        "duration_s": 1,
        "workers": [{"count": 1, "slots": 8}],
        "models": [
            {
                "name": "tokens",
                "slo_ms": 10_000,
                "profile": {"points_ms": {1: 1}, "max_batch": 1},
                "streaming": {"responses": 40, "gap_ms": 1, "slo_gap_ms": 5},
            }
        ],
        "arrivals": {"process": "uniform", "rate_rps": 40},
    }
    run = LiveRun(Scenario.model_validate(document), PolicyChoice(name="fake"), 1, SendingOptions({}), triton.target)
    live = run_live(run)
    total = live.result.total
    assert total.accepted == 40
    assert total.dropped == {"timeout": 10}
    assert total.answered == 30
    assert total.late == 0
    assert total.gap_p50_ms is not None
    assert total.gap_p50_ms >= 10
    assert total.gap_attainment == 0
    assert total.p50_ms is not None
    assert {count for _, count in live.seen.run.streams.values()} == {3}
