"""Quality of `tidegate recommend`: its recommendation against an exhaustive search over the same choices.

    python -m bench.recommend [--requests N] [--only NAME ...] [--recording FILE] [--json FILE]

Six simulated workloads: a burst of one model, a zoo, OCR with requests of many rows (from an event log), a cluster for
a split model (with an SLO that all its GPUs can meet unsplit, and with one that only the fast GPUs can), and GPUs that
can be partitioned. The exhaustive search runs every candidate and every setting of Triton on the held-out seeds, so
that it is luckier than a recommendation can be. Takes minutes on two idle cores.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from tidegate.api import Plan, PlannerSpec, PlanningError, VersionedDocument
from tidegate.api.late_import import load
from tidegate.host import Plugins
from tidegate.observation import Recorder, read_log
from tidegate.recommend.assess import tightened
from tidegate.recommend.candidates import Candidate, candidates_on
from tidegate.recommend.held_out import HELD_OUT_SEEDS
from tidegate.recommend.query import RecommendQuery
from tidegate.recommend.recommendation import recommend
from tidegate.recommend.recording import read_recording, scenario_of_recording
from tidegate.recommend.simulation_run import SimulationRun
from tidegate.recommend.simulation_runs import SimulationRuns
from tidegate.recommend.triton_tuning import in_proportion, triton_choices
from tidegate.schemas import BlockLatencies, BlockProfile
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, ScenarioError

PLANNING_S = 1.0
ZOO = [
    ("DenseNet121", 21, 0.054, 10.546),
    ("ResNet50V2", 20, 0.135, 5.56),
    ("EfficientNetB0", 20, 0.115, 4.326),
    ("ResNet101", 20, 0.284, 8.266),
    ("MobileNetV3Large", 20, 0.196, 4.072),
    ("EfficientNetB1", 20, 0.291, 5.797),
]
"""Models of the Symphony paper's Table 4: SLO in ms, and ms per row and per batch."""
SLICES = {
    "": [5.1, 5.3, 5.6, 6.6, 9.3, 14],
    "/1g.5gb": [5.1, 6.9, 11, 21, 40, 78],
    "/2g.10gb": [4.7, 5.2, 7.1, 12, 22, 41],
    "/3g.20gb": [4.7, 5.1, 5.9, 8.4, 14, 25],
    "/4g.20gb": [4.7, 5.1, 5.7, 7.6, 12, 22],
    "/7g.40gb": [5.1, 5.3, 5.6, 6.6, 9.3, 14],
}
"""Synthetic latencies of slices in ms for 1, 2, 4, 8, 16 and 32 rows."""


@dataclass(frozen=True)
class Compared:
    """Result of one workload."""

    workload: str
    verdict: str
    run: str
    score: float
    """Score of the recommendation on held-out seeds: mean of the attainment of all requests and of the worst model."""
    best: str
    best_score: float
    triton: float
    """Score of Triton as `recommend` tuned it."""
    best_triton: float
    """Score of the best setting of Triton that is equal for all models or proportional to their SLOs."""
    runs: int
    seconds: float
    all_runs: int
    all_seconds: float

    @property
    def off(self) -> float:
        """Difference between the best score and that of the recommendation, in points."""
        return 100 * (max(self.best_score, self.best_triton) - self.score)


def workloads(requests: int, recording: Path | None = None) -> dict[str, Callable[[], RecommendQuery]]:
    """Return functions that make the queries, by name.

    Args:
        requests: number of requests in each run of the search.
        recording: event log of a server, as a further workload.
    """

    def asked(given: dict[str, Any], **more: Any) -> RecommendQuery:  # noqa: ANN401 - fields of a question
        scenario = Scenario.model_validate({"warmup_s": 1, "duration_s": 20, **given})
        return RecommendQuery(scenario, requests=requests, run_planner=run_planner, **more)

    recorded = {} if recording is None else {recording.stem: lambda: question_of(recording, requests)}
    return {
        **recorded,
        "burst": lambda: asked(
            {
                "name": "burst",
                "workers": [{"count": 4, "gpu": "1080Ti"}],
                "models": [_linear("resnet50", 25, 1.053, 5.072)],
                "arrivals": {"process": "gamma", "shape": 0.3, "rate_rps": 2100},
            }
        ),
        "zoo": lambda: asked(
            {
                "name": "zoo",
                "workers": [{"count": 4, "gpu": "A100"}],
                "models": [_linear(*each) for each in ZOO],
                "arrivals": {"process": "poisson", "rate_rps": 3000},
            }
        ),
        "ocr, recorded": lambda: _ocr(requests),
        "split model": lambda: asked(_split(slo_ms=42), blocks={"detector": _detector()}),
        "split model, tight": lambda: asked(_split(slo_ms=36), blocks={"detector": _detector()}),
        "slices": lambda: asked(
            {
                "name": "slices",
                "workers": [{"count": 2, "gpu": "A100-40GB"}],
                "models": [
                    {
                        "name": "resnet50",
                        "slo_ms": 30,
                        "max_batch": 32,
                        "rows": {
                            "distribution": "table",
                            "values": [1, 2, 4, 8, 16, 32],
                            "weights": [30, 25, 20, 15, 8, 2],
                        },
                        "profiles": {
                            f"A100-40GB{part}": {"points_ms": dict(zip((1, 2, 4, 8, 16, 32), times, strict=True))}
                            for part, times in SLICES.items()
                        },
                    }
                ],
                "arrivals": {"process": "poisson", "rate_rps": 600},
            }
        ),
    }


def run_planner(planner: PlannerSpec, problem: VersionedDocument) -> Plan:
    """Run a planner with a time limit of one second."""
    load(planner.run)
    begun = time.perf_counter()

    def progress(*, objective: float | None = None, bound: float | None = None) -> float:
        del objective, bound
        return time.perf_counter() - begun

    return planner.run(problem, time_limit_s=PLANNING_S, progress=progress)


def compare(workload: str, question: RecommendQuery, jobs: int) -> Compared:
    """Run `recommend` and the exhaustive search.

    Args:
        workload: name of the workload.
        question: the query.
        jobs: number of processes.
    """
    begun = time.perf_counter()
    found = recommend(question, SimulationRuns(jobs))
    took_s = time.perf_counter() - begun
    chosen = found.chosen
    begun = time.perf_counter()
    site = chosen.site
    candidates, _ = candidates_on(site, chosen.count)
    grid = triton_choices(question.scenario)
    tritons = [Candidate(choice) for choice in [*grid, *(in_proportion(question.scenario, each) for each in grid)]]
    trials = SimulationRuns(jobs)
    scores = _scores(trials, question, [(each, site.scenario(each.planner, chosen.count)) for each in candidates])
    tritons_scores = _scores(trials, question, [(each, site.scenario("", chosen.count)) for each in tritons])
    best, best_score = max(zip(candidates, scores, strict=True), key=lambda pair: pair[1])
    ours = found.recommended.result
    return Compared(
        workload,
        found.verdict,
        found.candidate.title,
        fmean(ours.scores),
        best.title,
        best_score,
        fmean(chosen.tritons.scores) if chosen.tritons else 0.0,
        max(tritons_scores),
        found.runs,
        took_s,
        trials.count,
        time.perf_counter() - begun,
    )


def _scores(
    trials: SimulationRuns, question: RecommendQuery, entrants: Sequence[tuple[Candidate, Scenario]]
) -> list[float]:
    """Every entrant on every held-out seed, in windows as long as those that are reported."""
    runs = [
        SimulationRun(tightened(scenario, 1), each.choice, seed, 1.0, question.recording, 2 * question.requests)
        for each, scenario in entrants
        for seed in HELD_OUT_SEEDS
    ]
    outcomes = trials.run("all", runs)
    size = len(HELD_OUT_SEEDS)
    return [
        fmean(outcome.score for outcome in outcomes[start : start + size]) for start in range(0, len(outcomes), size)
    ]


def _linear(name: str, slo_ms: float, alpha_ms: float, beta_ms: float) -> dict[str, Any]:
    return {
        "name": name,
        "slo_ms": slo_ms,
        "profile": {"alpha_ms": alpha_ms, "beta_ms": beta_ms, "max_batch": 64},
    }


def _split(slo_ms: float) -> dict[str, Any]:
    """A model that takes a P4 38 ms: with an SLO below that, whole, it can only run on the two L4, 250 a second."""
    return {
        "name": "split model",
        "workers": [{"count": 2, "gpu": "L4"}, {"count": 6, "gpu": "P4"}],
        "network": {"gbps": 6},
        "models": [
            {
                "name": "detector",
                "slo_ms": slo_ms,
                "max_batch": 2,
                "profiles": {"L4": {"points_ms": {1: 10, 2: 16}}, "P4": {"points_ms": {1: 38, 2: 73}}},
            }
        ],
        "arrivals": {"process": "poisson", "rate_rps": 300},
    }


def _detector() -> BlockProfile:
    """As in plugins/ppipe/README.md."""
    tables: list[list[list[float]]] = [
        [[3000, 4500], [4000, 6500], [3000, 5000]],
        [[4800], [6200], [4700]],
        [[7000, 13000], [15000, 29000], [16000, 31000]],
    ]
    l4, half, p4 = tables
    return BlockProfile(
        model="detector",
        blocks=["stem", "body", "head"],
        cut_bytes=[600_000, 150_000],
        latencies=[
            BlockLatencies(device_class="L4", share=1, rows=[1, 2], latency_us=l4),
            BlockLatencies(device_class="L4", share=2, rows=[1], latency_us=half),
            BlockLatencies(device_class="P4", share=1, rows=[1, 2], latency_us=p4),
        ],
    )


def _ocr(requests: int) -> RecommendQuery:
    """Pages, each one to find lines in and many lines to read, recorded while they were served first come first."""
    lines = {"distribution": "lognormal", "mean": 6, "cv": 0.8}
    served = Scenario.model_validate(
        {
            "name": "ocr, recorded",
            "warmup_s": 0,
            "duration_s": 16 * max(2.0, requests / 300),
            "workers": [{"count": 4, "gpu": "T4"}],
            "models": [
                {**_linear("detect", 120, 11, 9), "weight": 1},
                {**_linear("recognize", 80, 1.6, 6), "weight": 2, "rows": lines},
            ],
            "arrivals": {"process": "gamma", "shape": 0.5, "rate_rps": 130},
        }
    )
    log = BytesIO()
    simulate(RunSpec(served, PolicyChoice(name="fifs"), seed=7), observers=[Recorder(log)])
    return _question(log.getvalue().splitlines(keepends=True), served.name, requests)


def question_of(path: Path, requests: int) -> RecommendQuery:
    """Return a query from an event log. Raises RecordingError, OSError.

    `requests`: number of requests in each run of the search.
    """
    return _question(path.read_bytes().splitlines(keepends=True), path.stem, requests)


def _question(lines: Sequence[bytes], name: str, requests: int) -> RecommendQuery:
    header, entries = read_log(lines)
    recording, given = read_recording(header.setup, entries)
    return RecommendQuery(scenario_of_recording(given, name), recording, requests=requests, run_planner=run_planner)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison, print a table and write figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.recommend", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000, help="in each run of the search; default 3000")
    parser.add_argument("--only", nargs="+", help="some of the workloads")
    parser.add_argument("--recording", type=Path, metavar="FILE", help="one more workload: an event log of a server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--jobs", type=int, default=-1, help="simulations at once; default: as many as cores")
    options = parser.parse_args(arguments)
    console = Console()
    Plugins.installed()
    table = Table(
        "workload", "answer", "its score", "best of all", "off, points", "Triton", "runs", "s", "all: runs", "s"
    )
    found = []
    for name, ask in workloads(options.requests, options.recording).items():
        if options.only and name not in options.only:
            continue
        try:
            its = compare(name, ask(), options.jobs)
        except (PlanningError, ScenarioError) as error:
            parser.error(f"{name}: {error}")
        found.append(its)
        console.print(f"{name}: {its.verdict} {its.run}, {its.off:.2f} points off")
        table.add_row(
            name,
            f"{its.verdict}: {its.run}",
            f"{100 * its.score:.2f}",
            f"{its.best} {100 * its.best_score:.2f}",
            f"{its.off:.2f}",
            f"{100 * its.triton:.2f} of {100 * its.best_triton:.2f}",
            f"{its.runs}",
            f"{its.seconds:.0f}",
            f"{its.all_runs}",
            f"{its.all_seconds:.0f}",
        )
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(each) | {"off": each.off} for each in found], indent=1) + "\n")
    console.print(table)


if __name__ == "__main__":
    main()
