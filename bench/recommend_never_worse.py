"""Regret of following `tidegate recommend`: twenty workloads, each served as before and as recommended.

    python -m bench.recommend_never_worse [--seed N] [--requests N] [--only NUMBER ...] [--json FILE]

Ten scenarios served by Triton itself, and ten event logs of a Tidegate with some policy, with random workers, models,
SLOs, bursts, rows, wrong profiles, and loads from light to overload. The previous and the recommended setup are then
simulated on the same requests, with seeds used neither to choose nor to judge the recommendation. Takes minutes on two
cores.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from tidegate.observation import Recorder, read_log
from tidegate.recommend.query import RecommendQuery
from tidegate.recommend.recommendation import recommend
from tidegate.recommend.recording import MIN_ADVISED_LENGTH_S, read_recording, scenario_of_recording
from tidegate.recommend.simulation_runs import SimulationRun, SimulationRuns
from tidegate.sim.interval import Interval, interval_of
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, stream

WORKLOADS = 20
JUDGING_SEEDS = range(7000, 7008)
WORSE = 0.002
"""Loss of score from which a change counts as worse, if its interval does not contain 0."""
RECORDED_REQUESTS = 6000
POLICIES = ("symphony", "eager", "fifs", "nexus", "clipper", "timeout", "clockwork", "symphony", "orloj", "fifs")
"""Policies that served the recordings."""


@dataclass(frozen=True)
class Followed:
    """The previous and the recommended setup on requests that neither has seen."""

    number: int
    traffic: str
    before: str
    verdict: str
    answer: str
    promised_load: float | None
    before_attainment: float
    after_attainment: float
    gain: Interval
    """Gain of the score, the mean of the attainment of all requests and of the worst model."""
    runs: int

    @property
    def is_worse(self) -> bool:
        """Whether following the recommendation loses more than chance explains."""
        return self.gain.mean < -WORSE and self.gain.high < 0


def drawn_scenario(seed: int, number: int) -> Scenario:
    """Draw scenario `number` of the sample with this seed."""
    draw = stream(seed, "never worse", number)
    count, workers = draw.choice((1, 1, 2, 3)), draw.choice((1, 2, 4))
    models = [_drawn_model(draw, f"model{each}") for each in range(count)]
    bearable_rps = workers / fmean(
        (model["alpha"] * model["batch"] + model["beta"]) / model["batch"] / 1e3 for model in models
    )
    load = draw.choice((0.15, 0.4, 0.7, 0.9, 1.1))
    rate_rps = round(load * bearable_rps, 1)
    process = draw.choice(({"process": "poisson"}, {"process": "gamma", "shape": 0.3}))
    given: dict[str, Any] = {
        "name": f"{load:g} of what {workers} workers can do, {count} models, {process['process']}",
        "warmup_s": 1,
        "duration_s": max(MIN_ADVISED_LENGTH_S + 1, RECORDED_REQUESTS / rate_rps),
        "workers": [{"count": workers}],
        "models": [
            {
                "name": model["name"],
                "slo_ms": model["slo"],
                "profile": {"alpha_ms": model["alpha"], "beta_ms": model["beta"], "max_batch": 32},
            }
            for model in models
        ],
        "arrivals": {**process, "rate_rps": rate_rps},
    }
    if draw.random() < 0.3:
        given["simulation"] = {"stalls": {"probability": 0.005, "factor": 10}}
    return Scenario.model_validate(given)


def _drawn_model(draw: Random, name: str) -> dict[str, Any]:
    """Return a model's latency, SLO, and the batch that the SLO leaves time for."""
    alpha, beta = round(draw.uniform(0.2, 3), 2), round(draw.uniform(1, 12), 2)
    slo = round(draw.uniform(2.5, 8) * (alpha + beta), 1)
    batch = max(1, min(32, int((slo / 2 - beta) / alpha)))
    return {"name": name, "alpha": alpha, "beta": beta, "slo": slo, "batch": batch}


def question_of(seed: int, number: int, requests: int) -> tuple[Scenario, RecommendQuery]:
    """Return the true scenario and the query of an operator; odd numbers are queries from an event log.

    Args:
        seed: of the sample.
        number: of the scenario.
        requests: number of requests in each run of the search.
    """
    truth = drawn_scenario(seed, number)
    if number % 2 == 0:
        return truth, RecommendQuery(truth, requests=requests)
    log, current = BytesIO(), PolicyChoice(name=POLICIES[number // 2 % len(POLICIES)])
    served = truth.model_copy(update={"warmup_s": 0.0})
    simulate(RunSpec(served, current, seed), observers=[Recorder(log)])
    header, entries = read_log(log.getvalue().splitlines(keepends=True))
    recording, given = read_recording(header.setup, entries)
    scenario = scenario_of_recording(given, truth.name)
    return truth, RecommendQuery(scenario, recording, current=current, requests=requests)


def follow(seed: int, number: int, requests: int, jobs: int) -> Followed:
    """Run `recommend`, and compare the previous setup with the recommended one.

    Args:
        seed: of the sample.
        number: of the scenario.
        requests: number of requests in each run.
        jobs: number of processes.
    """
    truth, question = question_of(seed, number, requests)
    found = recommend(question, SimulationRuns(jobs))
    before = question.current or question.unmodified_triton
    trials = SimulationRuns(jobs)

    def outcomes(choice: PolicyChoice) -> list[tuple[float, float]]:
        got = trials.run("", [SimulationRun(truth, choice, each, requests=2 * requests) for each in JUDGING_SEEDS])
        return [(outcome.attainment, outcome.score) for outcome in got]

    was, now = outcomes(before), outcomes(found.candidate.choice)
    return Followed(
        number,
        ("event log, " if question.recording is not None else "scenario, ") + truth.name,
        before.title,
        found.verdict,
        found.candidate.title,
        found.max_load,
        fmean(attainment for attainment, _ in was),
        fmean(attainment for attainment, _ in now),
        interval_of([after - ago for (_, after), (_, ago) in zip(now, was, strict=True)], -1.0, 1.0),
        found.runs,
    )


def show(console: Console, rows: Sequence[Followed]) -> None:
    """Print the table."""
    table = Table("", "traffic", "before", "answer", "attainment before", "after", "gain of the score, pp", "worse")
    for row in rows:
        bounds = [f"{100 * value:+.1f}" for value in (row.gain.mean, row.gain.low, row.gain.high)]
        table.add_row(
            str(row.number),
            row.traffic,
            row.before,
            "change nothing" if row.verdict == "keep" else row.answer,
            f"{row.before_attainment:.1%}",
            f"{row.after_attainment:.1%}",
            f"{bounds[0]} ({bounds[1]} to {bounds[2]})",
            "[red]yes[/]" if row.is_worse else "no",
        )
    console.print(table)


def main() -> None:
    """Run the benchmark and write its figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.recommend_never_worse", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample; default 1")
    parser.add_argument("--requests", type=int, default=800, help="in each run of the search; default 800")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="some of the workloads")
    parser.add_argument("--jobs", type=int, default=-1, help="simulations at a time; default one per core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 200)
    rows = []
    for number in options.only or range(WORKLOADS):
        rows.append(follow(options.seed, number, options.requests, options.jobs))
        show(console, rows[-1:])
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    show(console, rows)
    kept = sum(row.verdict == "keep" for row in rows)
    worse = sum(row.is_worse for row in rows)
    console.print(f"{len(rows)} workloads: {kept} change nothing, {len(rows) - kept} change, {worse} worse")


if __name__ == "__main__":
    main()
