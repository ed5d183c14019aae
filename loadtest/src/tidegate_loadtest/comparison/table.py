"""Terminal output of a comparison."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.commands.common import TableColumn, print_table
from tidegate_loadtest.comparison.findings import (
    ComparedFigure,
    contrast_of,
    figures_of,
    interval_of,
    late_p99_ms,
    verdicts,
    warnings,
)
from tidegate_loadtest.comparison.intervals import (
    CONFIDENCE_LEVEL,
    MIN_VALUES_FOR_INTERVAL,
    ConfidenceInterval,
    mean_of,
)
from tidegate_loadtest.comparison.runs import Comparison
from tidegate_loadtest.comparison.targets import Target

SHOWN_DIFFERENCES = ("goodput_rps", "attainment", "p50_ms", "p99_ms", "gap_p99_ms", "mean_batch_rows")
"""Figures whose differences the terminal shows; document and page have all."""
TENANT_HEADINGS = ("tenant", "target", "offered /s", "on time", "rate limited")
MAX_PRIORITY = 5
FIGURE_PRIORITIES = {"target": 0, "attainment": 0, "p99 ms": 1, "goodput /s": 2, "late p99 ms": 3, "p50 ms": 4}
"""Columns that a narrow terminal drops last."""


def print_comparison(console: Console, comparison: Comparison, title: str) -> None:
    """Print the figures, the differences to the first target, the warnings and the verdicts."""
    print_figures(console, comparison, title)
    if comparison.complete:
        console.print(_differences(comparison))
        if lines := tenant_cells(comparison):
            tenants = [TableColumn(heading, partial(_cell, place)) for place, heading in enumerate(TENANT_HEADINGS)]
            print_table(console, tenants, lines, "tenants")
    for verdict in verdicts(comparison):
        console.print(verdict, style="bold", markup=False)


def print_figures(console: Console, comparison: Comparison, title: str, names: Collection[str] | None = None) -> None:
    """Print the figures, all or those in `names`, and the warnings."""
    figures = [figure for figure in figures_of(comparison) if names is None or figure.name in names]
    rounds = len(comparison.complete)
    if rounds:
        headings = ["target", *(figure.heading for figure in figures), "late p99 ms"]
        priorities = [FIGURE_PRIORITIES.get(heading, MAX_PRIORITY) for heading in headings]
        columns = [
            TableColumn(heading, partial(_cell, number), priority)
            for number, (heading, priority) in enumerate(zip(headings, priorities, strict=True))
        ]
        print_table(console, columns, figure_cells(comparison, figures), escape(title))
    if 1 < rounds < MIN_VALUES_FOR_INTERVAL:
        console.print(
            f"Means of {rounds} rounds; {MIN_VALUES_FOR_INTERVAL} or more have confidence intervals.", style="dim"
        )
    elif rounds > 1:
        console.print(f"Means of {rounds} rounds, and their {CONFIDENCE_LEVEL:.0%} confidence intervals.", style="dim")
    for warning in warnings(comparison):
        console.print(warning, style="bold red", markup=False)


def _cell(number: int, cells: Sequence[str]) -> str:
    return escape(cells[number])


def figure_cells(comparison: Comparison, figures: Sequence[ComparedFigure]) -> list[list[str]]:
    """Return a row for each target: its name, the figures, the generator's lateness in the worst round."""
    lines = []
    for target in comparison.targets:
        cells = [with_spread(interval_of(comparison, target, figure), figure.shown) for figure in figures]
        late_ms = late_p99_ms(comparison, target)
        lines.append([target.name, *cells, "-" if late_ms is None else f"{late_ms:.2f}"])
    return lines


def with_spread(interval: ConfidenceInterval | None, shown: Callable[[float], str]) -> str:
    """Format a mean with its interval: `98.3`, and under it `97.9 .. 98.7`."""
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return shown(interval.mean)
    return f"{shown(interval.mean)}\n{shown(interval.low)} .. {shown(interval.high)}"


def tenant_cells(comparison: Comparison) -> list[list[str]]:
    """Return the cells of `TENANT_HEADINGS` for each tenant and target, over the complete rounds."""
    lines = []
    for place, tenant in enumerate(comparison.scenario.tenants):
        for target in comparison.targets:
            found = [live.result.tenants[place] for live in comparison.of(target)]
            rejected = [each.rate_limited / each.requests for each in found if each.requests]
            cells = [
                with_spread(mean_of([each.offered_rps for each in found]), "{:,.1f}".format),
                with_spread(mean_of([each.attainment for each in found]), "{:.1%}".format),
                with_spread(mean_of(rejected), "{:.1%}".format),
            ]
            lines.append([tenant.name, target.name, *cells])
    return lines


def difference_cell(comparison: Comparison, target: Target, base: Target, figure: ComparedFigure) -> str:
    """Format a difference with its interval: `+13.1 (+12.0 .. +14.2)`, in percent for the goodput."""
    contrast = contrast_of(comparison, target, base, figure)
    return "-" if contrast is None else str(contrast)


def _differences(comparison: Comparison) -> Table:
    base, *others = comparison.targets
    figures = [figure for figure in figures_of(comparison) if figure.name in SHOWN_DIFFERENCES]
    heads = (figure.heading.removesuffix(" /s").removesuffix(" ms") for figure in figures)
    table = Table("", *heads, title=escape(f"Against {base.name}, in the same rounds"))
    for column in table.columns[1:]:
        column.justify = "right"
    for target in others:
        table.add_row(escape(target.name), *(difference_cell(comparison, target, base, figure) for figure in figures))
    return table
