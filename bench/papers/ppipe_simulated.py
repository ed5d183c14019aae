"""PPipe against its baselines, simulated, on the paper's clusters of 25 fast and 75 slow GPUs (sections 7.2 and 7.4).

    python -m bench.papers.ppipe_simulated --data DIR --json ppipe.json

DIR has the artifact's block timings and plans (docs/results/ppipe.md), which are not a part of this project. Takes
about an hour on two cores, so it is not in `make bench`; `--clusters HC1-L --groups G1` runs a part.

Each framework is a planner and a data plane. Load factor 1 is the throughput of the artifact's own PPipe plan; a
model's load factor is the highest, on a grid of 0.05, with 99 % of its requests on time. Three models share a cluster
and its links.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bench.common import console_of, parser_of, print_table, run_all, write_json
from tidegate.schemas import DocumentError, Layout, read_document, write_document
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import Scenario
from tidegate_ppipe.layout import layout_of
from tidegate_ppipe.planners import plan_dart, plan_np, plan_ppipe
from tidegate_ppipe.published_plans import PublishedProblem, read_published

if TYPE_CHECKING:
    from tidegate.sim.result import RunResult

FRAMEWORKS = {
    "NP": (plan_np, "ppipe"),
    "DART-r": (plan_dart, "ppipe"),
    "PPipe": (plan_ppipe, "ppipe"),
    "reactive": (plan_ppipe, "reactive"),
}
"""Planner, and policy that runs its plan, by framework."""
ARRIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "Poisson": ("maf19", {"process": "poisson"}),
    "bursty": ("maf21", {"process": "gamma", "shape": 0.25}),
}
"""Weights of the models in the artifact, and the arrival process; the artifact's trace of 2021 is not available."""
STEP = 0.05
MOST_STEPS = 26
ATTAINMENT = 0.99
PLAN_WITHIN_S = 10.0
PAPER = {
    ("Poisson", "NP"): {"HC1-L": 64.9, "HC2-L": 34.8, "HC3-L": 46.7, "HC4-L": 45.5, "mean": 48.0},
    ("bursty", "NP"): {"HC1-L": 161.6, "HC2-L": 34.1, "HC3-L": 50.4, "HC4-L": 54.1, "mean": 75.1},
    ("Poisson", "DART-r"): {"HC1-L": 47.2, "HC2-L": 17.3, "HC3-L": 34.8, "HC4-L": 29.3, "mean": 32.2},
    ("bursty", "DART-r"): {"HC1-L": 50.4, "HC2-L": 18.1, "HC3-L": 40.2, "HC4-L": 34.5, "mean": 35.8},
}
"""Published gain of PPipe's load factor in percent (section 7.2)."""


@dataclass(frozen=True)
class Task:
    """A framework, a problem and an arrival process."""

    published: PublishedProblem
    framework: str
    arrivals: str
    folder: Path
    """Folder that caches layouts."""
    duration_s: float
    jitter: float
    margin: float
    whole_margin: float


def scenario_of(task: Task, factor: float) -> Scenario:
    """Return the scenario of a task at a load factor."""
    problem = task.published.problem.model_copy(update={"margin": task.margin, "whole_margin": task.whole_margin})
    planner, policy = FRAMEWORKS[task.framework]
    file = task.folder / f"{task.published.name} {planner.__name__} {task.margin:g} {task.whole_margin:g}.json".replace(
        " ", "_"
    )
    if not file.exists():
        began_s = time.monotonic()
        plan = planner(problem, time_limit_s=PLAN_WITHIN_S, progress=lambda **_: time.monotonic() - began_s)
        write_document(file, layout_of(problem, plan))
    layout = read_document(file, Layout)
    rates_rps = task.published.throughput_rps["ppipe"]
    models = zip(layout.models, rates_rps, strict=True)
    return Scenario.model_validate(
        {
            "layout": layout,
            "models": [{"name": model.name, "weight": rate_rps} for model, rate_rps in models],
            "warmup_s": 1,
            "duration_s": task.duration_s,
            "arrivals": {**ARRIVALS[task.arrivals][1], "rate_rps": sum(rates_rps) * factor},
            "policies": [{"name": policy}],
            "simulation": {"learn": task.jitter > 0, "jitter": {"cv": task.jitter} if task.jitter else None},
        }
    )


def load_factors(task: Task) -> dict[str, Any]:
    """Return for each model the highest load factor with an attainment of 99 %.

    Models share runs, as they bisect the same grid; attainment is assumed to fall with load.
    """
    results: dict[int, RunResult] = {}

    def attains(step: int, model: str) -> bool:
        if step == 0:
            return True
        if step not in results:
            scenario = scenario_of(task, step * STEP)
            results[step] = simulate(RunSpec(scenario, scenario.policies[0], seed=1))
        return any(row.model == model and row.attainment >= ATTAINMENT for row in results[step].rows)

    factors: dict[str, float] = {}
    for model in (planned.name for planned in task.published.problem.models):
        good, bad = 0, MOST_STEPS + 1
        while bad - good > 1:
            step = (good + bad) // 2
            good, bad = (step, bad) if attains(step, model) else (good, step)
        factors[model] = round(good * STEP, 2)
    return {
        "problem": task.published.name,
        "cluster": task.published.cluster,
        "framework": task.framework,
        "arrivals": task.arrivals,
        "load_factors": factors,
        "runs": len(results),
    }


def summarize(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean load factors and PPipe's gains in percent, for each arrival process and cluster, and all clusters."""
    lines = []
    for arrivals in dict.fromkeys(row["arrivals"] for row in rows):
        clusters = list(dict.fromkeys(row["cluster"] for row in rows))
        gains: dict[str, list[float]] = defaultdict(list)
        for cluster in clusters:
            mean = {
                framework: fmean(
                    factor
                    for row in rows
                    if (row["arrivals"], row["cluster"], row["framework"]) == (arrivals, cluster, framework)
                    for factor in row["load_factors"].values()
                )
                for framework in dict.fromkeys(row["framework"] for row in rows)
            }
            line: dict[str, Any] = {"arrivals": arrivals, "cluster": cluster, **mean}
            for other in (name for name in ("NP", "DART-r") if name in mean and "PPipe" in mean):
                gain = 100 * (mean["PPipe"] / mean[other] - 1) if mean[other] else float("inf")
                gains[other].append(gain)
                line[f"over {other}"] = gain
            lines.append(line)
        everywhere: dict[str, Any] = {"arrivals": arrivals, "cluster": "mean"}
        for framework in dict.fromkeys(row["framework"] for row in rows):
            everywhere[framework] = fmean(line[framework] for line in lines if line["arrivals"] == arrivals)
        lines.append(everywhere | {f"over {other}": fmean(values) for other, values in gains.items()})
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulations, print load factors and gains beside the paper's, and write files."""
    parser = parser_of("bench.papers.ppipe_simulated", __doc__, jobs=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with the artifact's models/ and plans/")
    parser.add_argument("--layouts", type=Path, required=True, help="folder for the plans' layouts: made where missing")
    parser.add_argument("--clusters", nargs="*", help="default: all four")
    parser.add_argument("--groups", nargs="*", help="default: all three")
    parser.add_argument("--arrivals", nargs="*", choices=list(ARRIVALS), default=list(ARRIVALS))
    parser.add_argument("--frameworks", nargs="*", choices=list(FRAMEWORKS), default=list(FRAMEWORKS))
    parser.add_argument("--duration-s", type=float, default=10.0, help="of each run; 30 in the paper; default 10")
    parser.add_argument(
        "--jitter",
        type=float,
        default=0.0,
        help="coefficient of variation of every stage, which the engine learns; default 0",
    )
    parser.add_argument("--margin", type=float, default=0.4, help="of the SLO, that plans keep free; default 0.4")
    parser.add_argument("--whole-margin", type=float, default=0.4, help="the same for whole models; default 0.4")
    options = parser.parse_args(arguments)
    console = console_of(140)
    try:
        published = list(read_published(options.data))
    except DocumentError as error:
        parser.error(str(error))
    options.layouts.mkdir(parents=True, exist_ok=True)
    tasks = [
        Task(
            problem,
            framework,
            arrivals,
            options.layouts,
            options.duration_s,
            options.jitter,
            options.margin,
            options.whole_margin,
        )
        for problem in published
        if not options.clusters or problem.cluster in options.clusters
        if not options.groups or problem.group in options.groups
        for arrivals in options.arrivals
        if problem.workload == ARRIVALS[arrivals][0]
        for framework in options.frameworks
    ]
    if not tasks:
        parser.error(f"no such problem; there are: {', '.join(problem.name for problem in published)}")
    rows = run_all(console, "simulating", load_factors, tasks, options.jobs)
    lines = summarize(rows)
    _print_factors(console, lines)
    settings = {name: getattr(options, name) for name in ("duration_s", "jitter", "margin", "whole_margin")}
    write_json(options.json, {**settings, "rows": rows, "summary": lines})


def _print_factors(console: Console, lines: Sequence[dict[str, Any]]) -> None:
    frameworks = [name for name in FRAMEWORKS if name in lines[0]]
    rows = []
    for line in lines:
        cells = [f"{line[name]:.3f}" for name in frameworks]
        for other in ("NP", "DART-r"):
            gain = line.get(f"over {other}")
            published = PAPER[line["arrivals"], other][line["cluster"]]
            cells += ["" if gain is None else f"{gain:+.1f} %", f"{published:+.1f} %"]
        rows.append([line["arrivals"], line["cluster"], *cells])
    columns = ["arrivals", "cluster", *frameworks, "over NP", "paper", "over DART-r", "paper"]
    print_table(console, "load factors", columns, rows)


if __name__ == "__main__":
    main()
