"""What the comparison of live with simulated says of a pair of runs."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench.live_vs_simulated import (
    MODEL,
    NOMINAL,
    SLO_MS,
    Overhead,
    Pair,
    nominal_ms,
    overhead_in_log,
    print_pairs,
    scenario_of,
)
from tidegate.api import NS_PER_MS, Batch, Dispatch, Request, RequestArrived, Stage, StageFinished
from tidegate.engine import StartStage
from tidegate.observation import EngineSettings, Recorder
from tidegate.sim.build import setup_of
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice
from tidegate_loadtest.live import LiveObservations
from tidegate_loadtest.result import RunResult

SCENARIO = scenario_of(100, 1, {**NOMINAL}, {**NOMINAL})


def pair(*, goodput: float = 1.0, batch: float = 0.0) -> Pair:
    simulated = simulate(RunSpec(SCENARIO, PolicyChoice(name="fifs"), 1)).total
    assert simulated.median_batch_rows is not None
    live = replace(
        simulated,
        goodput_rps=simulated.goodput_rps * goodput,
        median_batch_rows=simulated.median_batch_rows + batch,
        lateness_p99_ms=1.0,
    )
    return Pair("fifs", 100, 1, live, simulated, False, Overhead(1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("goodput", "batch", "meets"),
    [(1, 0, True), (0.96, 1, True), (1.04, -1, True), (0.94, 0, False), (1.06, 0, False), (1, 1.5, False)],
)
def test_both_aims_must_be_met_and_who_missed_is_named(goodput: float, batch: float, meets: bool) -> None:
    one = pair(goodput=goodput, batch=batch)
    assert one.meets == meets
    out = StringIO()
    print_pairs(Console(file=out, width=200), [one], 1)
    assert ("Missed: fifs at 100/s, seed 1" in out.getvalue()) != meets


def test_what_live_adds_is_read_from_the_event_log(tmp_path: Path) -> None:
    began_ns = 10**12
    took_ns = round((nominal_ms(2) + 1.5) * NS_PER_MS)
    with (tmp_path / "events.jsonl").open("wb") as out:
        recorder = Recorder(out)
        recorder.started("fifs", {}, setup_of(SCENARIO, 1), EngineSettings(learn=True, max_tries=2))
        due_ns = began_ns + round((SLO_MS - 0.5) * NS_PER_MS)
        for number in range(2):
            recorder.handled(RequestArrived(began_ns, Request(number, MODEL, 1, began_ns, due_ns)), [], [])
        batch = Batch(0, MODEL, (0, 1), (Stage(0, MODEL, began_ns, 0),))
        third = Request(2, MODEL, 1, began_ns, due_ns)
        recorder.handled(RequestArrived(began_ns, third), [Dispatch(batch)], [StartStage(batch, 0, 2)])
        recorder.handled(StageFinished(began_ns + took_ns, 0, 0, 0, began_ns, began_ns + took_ns), [], [])
    due = np.zeros(2, np.int64)
    finished = np.full(2, took_ns + 2 * NS_PER_MS, np.int64)
    run = RunResult(1, began_ns, due, due, finished, np.array(["OK", "OK"]))
    found = overhead_in_log(LiveObservations(run, 0, {}), tmp_path / "events.jsonl")
    assert found.execution_ms == pytest.approx(1.5, abs=1e-3)
    assert found.deadline_margin_ms == pytest.approx(0.5)
    assert found.network_latency_ms == pytest.approx(2, abs=1e-3)
