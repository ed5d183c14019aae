"""Columns of runs, the same for simulated and live ones."""

from typing import TYPE_CHECKING

from rich.markup import escape

from tidegate.commands.common import in_ms
from tidegate.commands.fitting_table import TableColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.sim.result import RunResult


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
