"""Results as tables for the terminal and rows for a file."""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.papers.paris_elsa.design_points import ELSA, FIFS, MERGING
from bench.papers.paris_elsa.throughput import Found

GAIN_OVER_WHOLE, GAIN_OVER_BEST = 1.7, 1.1
"""Aims: mean gains over whole GPUs and over the best homogeneous slices."""


def show_throughput(console: Console, results: Sequence[Found]) -> list[dict[str, Any]]:
    """Print queries per second of every design point and the gains of PARIS and ELSA; return them as rows."""
    rates, gains = _table("queries/s, p95 within the SLA", "random +F", "random +E", "knees +F", "knees +E"), []
    slices = Table("model", "PARIS by knees", "by SLO", title="Slices, and what no scheduler can pass on them")
    for column in ("by SLO +F", "by SLO +E", "knees / GPU(7)", "knees / max", "by SLO / GPU(7)", "by SLO / max"):
        rates.add_column(column, justify="right")
    for title, of_model in _by_model(results):
        equal = _equal(of_model)
        drawn = [_mean(_of(of_model, "heterogeneous-random", policy.title)) for policy in (FIFS, ELSA)]
        ours = {
            (each.cell.point.by_slo, each.cell.point.policy.title): each
            for each in of_model
            if each.cell.point.planner == "paris"
        }
        planned = [ours[by_slo, policy.title] for by_slo in (False, True) for policy in (FIFS, ELSA)]
        gained = [
            _rate(ours[by_slo, ELSA.title]) / base
            for by_slo in (False, True)
            for base in (equal[7], max(equal.values()))
        ]
        gains.append(gained)
        cells = [*equal.values(), *drawn, *(_rate(each) for each in planned)]
        best = max(cells)
        shown = [f"[bold]{cell:.0f}[/]" if cell == best else f"{cell:.0f}" for cell in cells]
        rates.add_row(title, *shown, *(f"{gain:.2f}" for gain in gained))
        slices.add_row(
            title,
            *(f"{_slices(each)} {each.ceiling_rps:.0f}" for each in (ours[False, ELSA.title], ours[True, ELSA.title])),
        )
    means = [fmean(column) for column in zip(*gains, strict=True)]
    rates.add_row("mean", *[""] * 10, *(f"{mean:.2f}" for mean in means))
    console.print(rates)
    console.print(slices)
    for name, (whole, best) in (("PARIS by knees", means[:2]), ("PARIS by SLO", means[2:])):
        console.print(
            f"{name} + ELSA: {whole:.2f} times GPU(7)+FIFS (aim {GAIN_OVER_WHOLE}), "
            f"{best:.2f} times the best homogeneous (aim {GAIN_OVER_BEST})"
        )
    return [each.row() for each in results]


def show_merging(console: Console, results: Sequence[Found]) -> list[dict[str, Any]]:
    """Print ELSA with merging beside ELSA without, on the same layouts; return the figures as rows."""
    table = Table("model", "layout", "plain", "merging", "", title="Merging of small queries, queries/s")
    for title, of_model in _by_model(results):
        plain, merging = ([each for each in of_model if each.cell.point.policy == policy] for policy in (ELSA, MERGING))
        for one, other in zip(plain, merging, strict=True):
            if one.rate_rps and other.rate_rps:
                gained = f"{other.rate_rps / one.rate_rps - 1:+.1%}"
                table.add_row(title, _slices(one), f"{one.rate_rps:.0f}", f"{other.rate_rps:.0f}", gained)
    console.print(table)
    return [each.row() for each in results]


def _table(title: str, *columns: str) -> Table:
    table = Table("model", "GPU(1)", "GPU(2)", "GPU(3)", "GPU(7)", *columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _by_model(results: Sequence[Found]) -> list[tuple[str, list[Found]]]:
    return [(title, list(own)) for title, own in groupby(results, lambda each: each.cell.case.title)]


def _equal(results: Sequence[Found]) -> dict[int, float]:
    """The rates of the homogeneous layouts by the size of their slices."""
    sized = {each.cell.point.size: _rate(each) for each in results if each.cell.point.planner == "homogeneous"}
    return {size: rate for size, rate in sized.items() if size is not None}


def _of(results: Sequence[Found], planner: str, policy: str) -> list[Found]:
    return [each for each in results if each.cell.point.planner == planner and each.cell.point.policy.title == policy]


def _rate(found: Found) -> float:
    return found.rate_rps or 0.0


def _mean(results: Sequence[Found]) -> float:
    return fmean(map(_rate, results))


def _slices(found: Found) -> str:
    return " ".join(f"{count}xGPU({size})" for size, count in found.slices.items())
