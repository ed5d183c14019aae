"""PPipe's planners on the paper's problems, other groups of its models, more GPU classes and more GPUs.

The last two are experiments of PPipe, sections 7.2 and 7.6.

    python -m bench.papers.ppipe_planner --data FOLDER --json FILE

`--data`: the folder with the paper's published profiles and plans. Keep the machine otherwise idle.
"""

import os
import platform
import random
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import track

from bench.common import console_of, parser_of, print_table, write_json
from tidegate.host import Plugins
from tidegate.schemas import DocumentError
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem
from tidegate_ppipe.published_plans import PUBLISHED_MARGIN, PublishedProblem, read_published

TIME_LIMIT_S = 10.0
PLANNERS = ("np", "dart-r", "ppipe")
CLASSES: dict[int, dict[str, int]] = {
    2: {"L4": 25, "T4": 75},
    3: {"L4": 13, "V100": 12, "T4": 75},
    4: {"L4": 13, "V100": 12, "T4": 38, "P4": 37},
}
"""Number of GPUs by class, for two to four classes: always 100 GPUs, a quarter of them fast."""
PER_NODE = {"L4": 1, "V100": 2, "T4": 4, "P4": 1}
MAX_SHARE = {"P4": 1}
"""Maximum number of MPS shares of a GPU class; P4 was profiled without MPS."""
GPUS = (100, 1000, 10_000, 100_000)
LIMITS_S: dict[int, tuple[float, ...]] = {2: (1.0, 10.0), 3: (1.0, 10.0, 35.0), 4: (1.0, 10.0, 77.0)}
"""Time limits in seconds, by number of classes; the last is the time of the paper's solver."""
REGROUPED = 48
"""Number of unpublished problems: other groups of the published models, on other clusters."""


@dataclass(frozen=True)
class Outcome:
    """Result of one run of a planner."""

    objective: float
    gap: float | None
    seconds: float
    cpu_s: float
    """CPU time of this process in seconds; also the planner's clock here, so that other processes do not matter."""


def main() -> None:
    """Run the planners, print the tables and write the figures."""
    parser = parser_of("bench.papers.ppipe_planner", __doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the paper's published data")
    arguments = parser.parse_args()
    console = console_of(120)
    console.print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    try:
        published = list(read_published(arguments.data))
    except DocumentError as error:
        parser.error(str(error))
    models = published[0].problem.models  # efficientnet-b8, encnet and rtmdet
    figures = {
        "published": bench_published(console, published),
        "regrouped": bench_regrouped(console, published),
        "classes": bench_classes(console, models),
        "gpus": bench_gpus(console, models),
    }
    write_json(arguments.json, figures)


def bench_published(console: Console, published: list[PublishedProblem]) -> list[dict[str, Any]]:
    """Run each planner on each published problem; return its objective as a share of the published one."""
    rows: list[dict[str, Any]] = []
    for each in track(published, "published problems", console=console, transient=True):
        row: dict[str, Any] = {"problem": each.name, "reference": each.normalized_min_rps["ppipe"]}
        for planner in PLANNERS:
            found = _run(planner, each.problem)
            row[planner] = {
                "objective": found.objective,
                "of_reference": found.objective / each.normalized_min_rps[planner],
                "gap": found.gap,
                "seconds": found.seconds,
                "cpu_s": found.cpu_s,
            }
        rows.append(row)
    title = "The published problems: requests/s of a weight of 1, then as shares of the published plans"
    lines = (
        (
            row["problem"],
            f"{row['reference']:.0f}",
            *(f"{row[planner]['objective']:.0f}" for planner in PLANNERS),
            *(f"{row[planner]['of_reference']:.4f}" for planner in PLANNERS),
            f"{row['ppipe']['cpu_s']:.2f}",
            f"{row['ppipe']['gap']:.2%}",
        )
        for row in rows
    )
    print_table(console, title, ("problem", "reference", *PLANNERS, *PLANNERS, "CPU s", "gap"), lines)
    summary = []
    for planner in PLANNERS:
        shares, seconds = ([row[planner][name] for row in rows] for name in ("of_reference", "cpu_s"))
        figures = (f"{figure:.4f}" for figure in (min(shares), fmean(shares), max(shares)))
        summary.append((planner, *figures, f"{fmean(seconds):.2f}", f"{max(seconds):.2f}"))
    columns = ("planner", "least", "mean", "most", "mean CPU s", "most CPU s")
    print_table(console, "All of them, as shares of the published", columns, summary)
    return rows


def bench_regrouped(console: Console, published: list[PublishedProblem]) -> list[dict[str, Any]]:
    """Plan three models of different published groups on 30 to 150 GPUs, with random weights and SLOs."""
    rows: list[dict[str, Any]] = []
    for number in track(range(REGROUPED), "other groups", console=console, transient=True):
        problem = _regrouped(random.Random(number), published)
        gpus = " + ".join(f"{gpu.count} {gpu.name}" for gpu in problem.classes)
        rows.append({"gpus": gpus, "models": [model.name for model in problem.models], **vars(_run("ppipe", problem))})
    gaps, seconds = [inf if row["gap"] is None else row["gap"] for row in rows], [row["cpu_s"] for row in rows]
    columns = ("problems", "gap at most 0.5%", "largest gap", "mean CPU s", "most CPU s")
    proven = sum(gap <= 0.005 for gap in gaps)
    line = (len(rows), proven, f"{max(gaps):.2%}", f"{fmean(seconds):.2f}", f"{max(seconds):.2f}")
    print_table(console, "Other groups, ppipe", columns, [line])
    return rows


def _regrouped(draw: random.Random, published: list[PublishedProblem]) -> PpipeProblem:
    """A published cluster of another size, with other models."""
    known = {model.name: model for each in published for model in each.problem.models}
    groups = [{model.name for model in each.problem.models} for each in published]
    while (names := draw.sample(sorted(known), 3)) and set(names) in groups:
        pass
    given = draw.choice(published).problem
    gpus = draw.choice([30, 60, 100, 150])
    fast = round(gpus * draw.choice([0.15, 0.25, 0.4]))
    counts = zip(given.classes, (fast, gpus - fast), strict=True)
    models = [
        known[name].model_copy(
            update={"slo_ms": known[name].slo_ms * draw.uniform(0.7, 1.4), "weight": draw.uniform(0.2, 1)}
        )
        for name in names
    ]
    classes = tuple(gpu.model_copy(update={"count": count}) for gpu, count in counts)
    return given.model_copy(update={"classes": classes, "models": tuple(models)})


def bench_classes(console: Console, models: tuple[PlannedModel, ...]) -> list[dict[str, Any]]:
    """Plan for two, three and four GPU classes with increasing time limits."""
    rows = []
    for count, classes in CLASSES.items():
        for limit_s in track(LIMITS_S[count], f"{count} classes", console=console, transient=True):
            found = _run("ppipe", _problem(classes, models, gbps=10), limit_s)
            rows.append({"classes": count, "gpus": classes, "limit_s": limit_s, **vars(found)})
    lines = (
        (" + ".join(f"{count} {name}" for name, count in row["gpus"].items()), f"{row['limit_s']:g}", *_texts(row))
        for row in rows
    )
    columns = ("classes", "limit, s", "requests/s", "CPU s", "gap")
    print_table(console, "100 GPUs of several classes, ppipe", columns, lines)
    return rows


def bench_gpus(console: Console, models: tuple[PlannedModel, ...]) -> list[dict[str, Any]]:
    """Plan for an increasing number of GPUs of two classes."""
    rows = []
    for gpus in track(GPUS, "GPUs", console=console, transient=True):
        for planner in PLANNERS:
            found = _run(planner, _problem({"L4": gpus // 4, "P4": gpus - gpus // 4}, models, gbps=6))
            rows.append({"gpus": gpus, "planner": planner, **vars(found)})
    lines = ((f"{row['gpus']:,}", row["planner"], *_texts(row)) for row in rows)
    columns = ("GPUs", "planner", "requests/s", "CPU s", "gap")
    print_table(console, "More GPUs: a quarter L4, the others P4", columns, lines)
    return rows


def _run(planner: str, problem: PpipeProblem, time_limit_s: float = TIME_LIMIT_S) -> Outcome:
    run = Plugins.installed().planner(planner).run
    start_s, start_cpu_s = time.monotonic(), time.process_time()
    plan = run(problem, time_limit_s=time_limit_s, progress=lambda **_: time.process_time() - start_cpu_s)
    return Outcome(plan.objective, plan.gap, time.monotonic() - start_s, time.process_time() - start_cpu_s)


def _problem(classes: dict[str, int], models: tuple[PlannedModel, ...], gbps: float) -> PpipeProblem:
    return PpipeProblem(
        classes=tuple(
            GpuClass(name=name, count=count, per_node=PER_NODE[name], max_share=MAX_SHARE.get(name, 4))
            for name, count in classes.items()
        ),
        models=models,
        gbps=gbps,
        margin=PUBLISHED_MARGIN,
        whole_margin=PUBLISHED_MARGIN,
    )


def _texts(row: dict[str, Any]) -> tuple[str, str, str]:
    return f"{row['objective']:,.0f}", f"{row['cpu_s']:.2f}", "?" if row["gap"] is None else f"{row['gap']:.3%}"


if __name__ == "__main__":
    main()
