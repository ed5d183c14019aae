"""Results as tables for the terminal and rows for a file."""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.papers.paris_elsa.design_points import EAGER, ELSA, FIFS, PUBLISHED_ELSA, SYMPHONY
from bench.papers.paris_elsa.throughput import Found

GAIN_OVER_WHOLE, GAIN_OVER_BEST = 1.7, 1.1
"""Aims: mean gains over whole GPUs and over the best homogeneous slices."""
_POLICIES = {"F": FIFS, "P": PUBLISHED_ELSA, "E": ELSA, "S": SYMPHONY}
_PLANNERS = {"random": "heterogeneous-random", "knees": "paris", "PARIS": "paris"}
_PLANNED = (*(("random", letter) for letter in "FE"), *(("knees", letter) for letter in "FPE"))
_PLANNED += tuple(("PARIS", letter) for letter in "FES")
"""The columns of planned slices: planner, policy."""


def show_throughput(console: Console, results: Sequence[Found]) -> list[dict[str, Any]]:
    """Print queries per second of every design point and the gains of PARIS and ELSA; return them as rows.

    F: FIFS, P: ELSA as published, E: ELSA, S: Symphony, M: eager with merging of queries.
    """
    rates = _table("queries/s, p95 within the SLA", "equal +S", "equal +M", *map(" ".join, _PLANNED))
    for column in ("knees P / GPU(7)", "/ equal", "PARIS E / GPU(7)", "/ equal", "/ equal +S"):
        rates.add_column(column, justify="right")
    slices = Table("model", "knees", "PARIS", title="Slices")
    gains: list[list[float]] = []
    for title, of_model in _by_model(results):
        equal, smart, merging = (_equal(of_model, policy.title) for policy in (FIFS, SYMPHONY, EAGER))
        planned = {
            (name, letter): _mean(_of(of_model, _PLANNERS[name], _POLICIES[letter].title, by_knees=name == "knees"))
            for name, letter in _PLANNED
        }
        published, ours = planned["knees", "P"], planned["PARIS", "E"]
        best = max(equal.values())
        gains.append([published / equal[7], published / best, ours / equal[7], ours / best, ours / max(smart.values())])
        cells = [*equal.values(), max(smart.values()), max(merging.values()), *planned.values()]
        shown = [f"[bold]{cell:.0f}[/]" if cell == max(cells) else f"{cell:.0f}" for cell in cells]
        rates.add_row(title, *shown, *(f"{gain:.2f}" for gain in gains[-1]))
        layouts = [_of(of_model, "paris", ELSA.title, by_knees=by_knees)[0] for by_knees in (True, False)]
        slices.add_row(title, *map(_slices, layouts))
    means = [fmean(column) for column in zip(*gains, strict=True)]
    rates.add_row("mean", *[""] * (6 + len(_PLANNED)), *(f"{mean:.2f}" for mean in means))
    console.print(rates)
    console.print(slices)
    for name, (whole, best) in (("Knees + ELSA as published", means[:2]), ("PARIS + ELSA", means[2:4])):
        console.print(
            f"{name}: {whole:.2f} times GPU(7)+FIFS (aim {GAIN_OVER_WHOLE}), "
            f"{best:.2f} times the best homogeneous (aim {GAIN_OVER_BEST})"
        )
    return [each.row() for each in results]


def _table(title: str, *columns: str) -> Table:
    table = Table("model", "GPU(1)", "GPU(2)", "GPU(3)", "GPU(7)", *columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _by_model(results: Sequence[Found]) -> list[tuple[str, list[Found]]]:
    return [(title, list(own)) for title, own in groupby(results, lambda each: each.cell.case.title)]


def _equal(results: Sequence[Found], policy: str) -> dict[int, float]:
    """The rates of the homogeneous layouts with a policy, by the size of their slices."""
    sized = {each.cell.point.size: _rate(each) for each in _of(results, "homogeneous", policy)}
    return {size: rate for size, rate in sized.items() if size is not None}


def _of(results: Sequence[Found], planner: str, policy: str, *, by_knees: bool = False) -> list[Found]:
    return [
        each
        for each in results
        if (each.cell.point.planner, each.cell.point.policy.title, each.cell.point.by_knees)
        == (planner, policy, by_knees)
    ]


def _rate(found: Found) -> float:
    return found.rate_rps or 0.0


def _mean(results: Sequence[Found]) -> float:
    return fmean(map(_rate, results))


def _slices(found: Found) -> str:
    return " ".join(f"{count}xGPU({size})" for size, count in found.slices.items())
