"""The planners of MIG slices: how long they take, several models together, and what a change of layout costs.

    python -m bench.mig_planner [--data FILE] [--json FILE]

`--data`: ParvaGPU's measurements of an A100-80GB, `model,gpc,batch,procs,throughput_per_proc_rps,latency_ms`
(docs/results/paris_elsa.md says where they come from). Without it the models are synthetic.

time       paris for 8, 100 and 1,000 GPUs, for one model and for several
together   several models planned together, beside each alone on its own of the same GPUs
change     from whole GPUs to slices, and from the slices of one day to those of another, beside the naive order
"""

import argparse
import csv
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tidegate.api import PlanningError
from tidegate.host import Plugins
from tidegate.schemas import Layout
from tidegate_paris_elsa.change_plan import Reconfiguration
from tidegate_paris_elsa.change_problem import ReconfigurationProblem
from tidegate_paris_elsa.problem import GpuPool, MigModel, MigProblem, SliceProfile

if TYPE_CHECKING:
    from tidegate_paris_elsa.plan import MigPlan

PRODUCT = "A100-80GB"
PROFILES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}
ROWS = (1, 2, 4, 8, 16, 32)
SYNTHETIC = {"tiny": (4.0, 0.8), "small": (5.0, 2.0), "medium": (6.0, 6.0), "large": (8.0, 16.0), "wide": (20.0, 3.0)}
"""Milliseconds per request, and per row and GPC."""
CHOSEN = ("mobilenetv2", "resnet50", "inceptionv3", "vgg16", "bert-large-seq128")
"""Of the measured models: those that were measured with 32 rows on every slice, from light to heavy."""
GPUS = (8, 100, 1000)
GROUPS = ((0, 1), (2, 3), (0, 4), (0, 1, 2), (0, 2, 4), (0, 1, 2, 3, 4))
"""Which of the models are served together."""
TOGETHER_GPUS = (8, 16)
USUAL, LARGER = (4.0, 0.9), (9.0, 0.7)
"""Sizes of requests, log-normal: median and sigma of the logarithm."""
SLO = 1.5
"""Times what the largest request takes on 7g."""
LIMIT_S = 60.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.mig_planner", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, metavar="FILE", help="measured slices")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    console = Console(width=None if os.isatty(1) else 140)
    console.print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    curves = read_curves(chosen.data) if chosen.data else synthetic_curves()
    figures = {
        "data": chosen.data.name if chosen.data else "synthetic",
        "time": bench_time(console, curves),
        "together": bench_together(console, curves),
        "change": bench_change(console, curves),
    }
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


Curves = Mapping[str, Mapping[int, Mapping[int, float]]]
"""{model: {GPCs: {rows: ms}}}."""


def read_curves(path: Path) -> Curves:
    """The measured models that are used. Raises OSError, and KeyError for other columns."""
    found: dict[str, dict[int, dict[int, float]]] = {name: {} for name in CHOSEN}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["model"] in found and row["procs"] == "1" and int(row["batch"]) in ROWS:
                curve = found[row["model"]].setdefault(int(row["gpc"]), {})
                curve[int(row["batch"])] = float(row["latency_ms"])
    return found


def synthetic_curves() -> Curves:
    """Models whose rows share the GPCs."""
    return {
        name: {gpcs: {rows: fixed_ms + row_ms * rows / gpcs for rows in ROWS} for gpcs in PROFILES}
        for name, (fixed_ms, row_ms) in SYNTHETIC.items()
    }


def sizes(median: float, sigma: float) -> dict[int, float]:
    """The shares of sizes that are log-normal, rounded, 1 to 32."""
    normal = NormalDist(log(median), sigma)
    ends = [normal.cdf(log(rows + 0.5)) for rows in range(1, ROWS[-1])]
    return dict(enumerate((after - before for before, after in zip([0.0, *ends], [*ends, 1.0], strict=True)), start=1))


def model_of(curves: Curves, name: str, drawn: tuple[float, float] = USUAL, weight: float = 1.0) -> MigModel:
    """One model, with an SLO."""
    by_gpcs = curves[name]
    profiles = tuple(
        SliceProfile(
            kind=PROFILES[gpcs], rows=tuple(sorted(curve)), latency_ms=tuple(curve[rows] for rows in sorted(curve))
        )
        for gpcs, curve in sorted(by_gpcs.items())
    )
    slo_ms = SLO * by_gpcs[7][ROWS[-1]]
    return MigModel(name=name, slo_ms=slo_ms, weight=weight, sizes=sizes(*drawn), profiles=profiles)


def problem(models: Sequence[MigModel], count: int, **more: object) -> MigProblem:
    """These models on so many GPUs."""
    gpus = (GpuPool(product=PRODUCT, count=count),)
    return MigProblem.model_validate({"gpus": gpus, "models": tuple(models), **more})


def planned(name: str, given: Any) -> Any:  # noqa: ANN401 - each planner's own
    """A plan, by a planner whose clock is this process's CPU time: what else the machine does is not its fault."""
    begin_s = time.process_time()
    spec = Plugins.installed().planner(name)
    return spec.run(given, time_limit_s=LIMIT_S, progress=lambda **_: time.process_time() - begin_s)


def layout_of(name: str, given: MigProblem) -> Layout:
    """The layout of a plan."""
    spec = Plugins.installed().planner(name)
    assert spec.layout is not None
    layout = spec.layout(given, planned(name, given))
    assert isinstance(layout, Layout)
    return layout


def weighted(curves: Curves, names: Sequence[str]) -> list[MigModel]:
    """These models, each with as much of the work: its weight is what one GPU bears of it."""
    alone = {name: planned("paris", problem([model_of(curves, name)], 1)).objective for name in names}
    return [model_of(curves, name, weight=alone[name] / max(alone.values())) for name in names]


def bench_time(console: Console, curves: Curves) -> list[dict[str, Any]]:
    """CPU seconds of `paris`."""
    figures = []
    for count in GPUS:
        for number in (1, 2, len(curves)):
            given = problem(weighted(curves, list(curves)[:number]), count)
            begin_s = time.process_time()
            plan: MigPlan = planned("paris", given)
            cpu_s = time.process_time() - begin_s
            figures.append(
                {"gpus": count, "models": number, "cpu_s": round(cpu_s, 3), "gap": plan.gap, "gpcs": plan.gpcs}
            )
    _show(console, "Planning", figures)
    return figures


def bench_together(console: Console, curves: Curves) -> list[dict[str, Any]]:
    """The load that several models bear, planned together and one at a time."""
    figures = []
    names = list(curves)
    for count in TOGETHER_GPUS:
        for group in GROUPS:
            models = weighted(curves, [names[number] for number in group])
            try:
                together: MigPlan = planned("paris", problem(models, count))
            except PlanningError as error:
                figures.append({"gpus": count, "models": ", ".join(m.name for m in models), "why not": str(error)})
                continue
            alone = one_at_a_time(models, count)
            figures.append(
                {
                    "gpus": count,
                    "models": ", ".join(model.name for model in models),
                    "together": round(together.objective, 1),
                    "one at a time": round(alone, 1),
                    "gain": round(together.objective / alone, 3),
                }
            )
    _show(console, "Several models: load in requests/s relative to weight", figures)
    return figures


def one_at_a_time(models: Sequence[MigModel], count: int) -> float:
    """The load that models bear on whole GPUs of their own, each GPU given to the model that bears least so far."""
    gpus = dict.fromkeys(range(len(models)), 1)
    borne = {number: planned("paris", problem([model], 1)).objective for number, model in enumerate(models)}
    for _ in range(count - len(models)):
        least = min(borne, key=borne.__getitem__)
        gpus[least] += 1
        borne[least] = planned("paris", problem([models[least]], gpus[least])).objective
    return float(min(borne.values()))


def bench_change(console: Console, curves: Curves) -> list[dict[str, Any]]:
    """Changes of layout: planned, and GPU by GPU."""
    names = list(curves)[:3]
    usual = weighted(curves, names)
    larger = [
        model_of(curves, model.name, LARGER, weight=model.weight).model_copy(update={"slo_ms": model.slo_ms})
        for model in usual
    ]
    shifted, nearly = (
        [
            model.model_copy(update={"weight": model.weight * factor})
            for model, factor in zip(usual, factors, strict=True)
        ]
        for factors in ((1, 2, 3), (1, 1.02, 1.05))
    )
    figures = []
    for count in GPUS:
        today = layout_of("paris", problem(usual, count))
        for title, present, models in (
            ("whole GPUs to slices", layout_of("homogeneous", problem(usual, count, size=7)), usual),
            ("larger requests", today, larger),
            ("other weights", today, shifted),
            ("a little other weights", today, nearly),
        ):
            then = layout_of("paris", problem(models, count))
            begin_s = time.process_time()
            plan = _changed(present, then, problem(models, count))
            cpu_s = time.process_time() - begin_s
            figures.append(
                {
                    "gpus": count,
                    "change": title,
                    "steps": len(plan.steps),
                    "worth": plan.worth,
                    "gained_rps": round(plan.gained_rps or 0.0, 1),
                    "cpu_s": round(cpu_s, 3),
                }
                | {
                    f"{who} {what}": round(getattr(cost, what), 2)
                    for who, cost in (("ours", plan.cost), ("naive", plan.naive))
                    for what in ("away_s", "seconds", "destroyed", "loads", "kept")
                }
            )
    _show(console, "Changes of layout: ours, and GPU by GPU", figures)
    return figures


def _changed(present: Layout, then: Layout, requests: MigProblem) -> Reconfiguration:
    """The change that keeps half of every model, or what can be kept."""
    for keep in (0.5, 0.25, 0.0):
        try:
            change = ReconfigurationProblem(present=present, planned=then, keep=keep, problem=requests)
            plan = planned("reconfigure", change)
        except PlanningError:
            continue
        assert isinstance(plan, Reconfiguration)
        return plan
    raise AssertionError("nothing need be kept, so some order will do")


def _show(console: Console, title: str, figures: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(column for row in figures for column in row))
    table = Table(*columns, title=title)
    for row in figures:
        table.add_row(*(str(row.get(column, "-")) for column in columns))
    console.print(table)


if __name__ == "__main__":
    main()
