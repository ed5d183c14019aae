"""Tables that fit the terminal: columns are dropped by priority, and no cell is cut; the columns of runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.commands.common import in_ms
from tidegate.terminal import UNBOUNDED_COLUMNS

if TYPE_CHECKING:
    from tidegate.sim.result import RunResult

MIN_NAME_COLUMNS: Final = 20
"""Width to which a name is folded before a column is dropped."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Column of a table: heading, how to format a row's cell, and whether it may be dropped."""

    heading: str
    cell: Callable[[Any], str]
    priority: int = 0
    """0: always shown; of the others the highest is dropped first where the terminal is too narrow."""


def print_table(
    console: Console, columns: Sequence[TableColumn], rows: Sequence[object], title: str | None = None
) -> None:
    """Print the rows as a table of as many columns as fit; name the others below it.

    The first column is a name, which is folded to MIN_NAME_COLUMNS before a column is dropped.
    """
    shown, unbounded = list(columns), console.options.update(max_width=UNBOUNDED_COLUMNS)
    while console.measure(_table(shown, rows, MIN_NAME_COLUMNS), options=unbounded).maximum > console.width:
        least = max(shown, key=lambda column: column.priority)
        if not least.priority:
            break
        shown.remove(least)
    table = _table(shown, rows)
    table.title = title
    console.print(table, soft_wrap=False)
    if dropped := [column.heading for column in columns if column not in shown]:
        console.print(f"Not shown at {console.width} columns: {', '.join(dropped)}.", style="dim", markup=False)


def _table(columns: Sequence[TableColumn], rows: Sequence[object], name_columns: int | None = None) -> Table:
    """Return the table; `name_columns`: largest width of the first column."""
    name, *figures = columns
    table = Table()
    table.add_column(name.heading, overflow="fold", max_width=name_columns)
    for column in figures:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table


def result_columns(results: "Sequence[RunResult]") -> list[TableColumn]:
    """Return the columns of a table of runs; those that are empty in all runs are left out.

    Each cell is of a RunResult.
    """
    totals = [result.total for result in results]
    columns = [
        TableColumn("policy", lambda result: escape(result.total.policy)),
        TableColumn("seed", lambda result: str(result.total.seed), 6),
        TableColumn("offered /s", lambda result: f"{result.total.offered_rps:,.0f}", 8),
        TableColumn("goodput /s", lambda result: f"{result.total.goodput_rps:,.0f}", 2),
        TableColumn("attainment", lambda result: f"{result.total.attainment:.2%}"),
    ]
    if any(len(result.rows) > 2 for result in results):  # the total, and more than one model
        columns.append(TableColumn("worst model", lambda result: f"{1 - result.total.worst_bad_rate:.2%}", 3))
    columns += [
        TableColumn("p50 ms", lambda result: in_ms(result.total.p50_ms), 5),
        TableColumn("p99 ms", lambda result: in_ms(result.total.p99_ms), 1),
        TableColumn("batch", lambda result: _number(result.total.median_batch_rows), 5),
        TableColumn("busy", lambda result: f"{result.total.busy_share:.0%}" if result.total.busy_shares else "-", 4),
    ]
    if any(total.gap_p99_ms is not None for total in totals):
        columns.append(TableColumn("gap p99 ms", lambda result: in_ms(result.total.gap_p99_ms), 2))
    if any(result.advice for result in results):
        columns.append(TableColumn("advice", _advice, 7))
    if any(total.lateness_p99_ms is not None for total in totals):
        columns.append(TableColumn("late p99 ms", lambda result: f"{result.total.lateness_p99_ms:.2f}", 3))
    return columns


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _advice(result: "RunResult") -> str:
    return f"{result.advice[-1].workers:+d}" if result.advice else "-"
