"""Helpers of the commands that run scenarios: errors, progress bar, tables that fit the terminal, output files."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.terminal import (
    UNBOUNDED_COLUMNS,
    console_for_errors,
    console_for_tables,
    describe_error,
    errors_in_a_line,
)

if TYPE_CHECKING:
    from tidegate.report import PageOrigin
    from tidegate.sim.result import RunResult
    from tidegate.workload import Scenario

__all__ = [
    "console_for_errors",
    "console_for_tables",
    "describe_error",
    "errors_explained",
    "errors_in_a_line",
    "in_ms",
    "origin",
    "title_of",
    "with_progress",
    "write_results",
]

T = TypeVar("T")
SIM_EXTRA_MODULES = {"numpy", "joblib", "yaml"}
"""Modules that the extra `sim` installs."""


@contextmanager
def errors_explained() -> Iterator[None]:
    """Context that turns errors that users can remedy into one line and exit status 1."""
    try:
        from tidegate.host import PluginError
        from tidegate.parallel_backend import ParallelBackendError
        from tidegate.sim.run import SimulationError
        from tidegate.workload import ScenarioError, TraceError

        with errors_in_a_line(PluginError, ParallelBackendError, SimulationError, ScenarioError, TraceError, OSError):
            yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SIM_EXTRA_MODULES:
            raise
        hint = 'pip install "tidegate[sim]"'
        console_for_errors().print(
            f"error: the simulator needs {error.name}, which is not installed: {hint}", style="red"
        )
        raise typer.Exit(1) from error


def with_progress(console: Console, label: str, results: Iterable[T], total: int | None) -> list[T]:
    """Return the results as a list, collected under a progress bar on a terminal.

    `label`: text before the bar. `total`: number of results; None: unknown.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    collected = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        for result in results:
            collected.append(result)
            bar.advance(task)
    return collected


def write_results(
    console: Console,
    document: dict[str, Any],
    output: Path | None,
    html_file: Path | None,
    page: Callable[[], str],
    *,
    as_json: bool = False,
) -> None:
    """Write results as JSON and as an HTML page, each where a file is given, and print where they are.

    `document`: results for `output`. `as_json`: print them as JSON, too. `page`: function that returns the page for
    `html_file`; it is called only if the page is written. None for a file: not written. Raises OSError if a file
    cannot be written.
    """
    from tidegate.sim.document import json_of, write_document

    if as_json:
        typer.echo(json_of(document), nl=False)
    if output is not None:
        write_document(output, document)
        console.print(f"[dim]results: {escape(str(output))}[/]")
    if html_file is not None:
        html_file.write_text(page(), encoding="utf-8")
        console.print(f"[dim]report: {escape(str(html_file))}[/]")


def origin() -> "PageOrigin":
    """Return the origin of an HTML page that is written now: version, date and command line."""
    from datetime import UTC, datetime

    from tidegate.report import PageOrigin

    now = datetime.now(UTC)  # noqa: TID251 - a page is dated by the day on which a person had it made; nothing goes by it
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return PageOrigin(metadata.version("tidegate"), f"{now:%Y-%m-%d %H:%M} UTC", command)


def title_of(scenario: "Scenario", *, rate: bool = True) -> str:
    """Return the title of a report on a scenario; `rate`: whether it includes the request rate."""
    from tidegate.workload import layout_of, mean_rate_rps
    from tidegate.workload.scenario_file import SERVERS_OWN

    workers = 0 if any(pool.gpu == SERVERS_OWN for pool in scenario.workers) else len(layout_of(scenario).workers)
    models = len(scenario.models)
    return (
        f"{scenario.name}: {models} model{'s' * (models > 1)}, "
        + (f"{workers} worker{'s' * (workers > 1)}, " if workers else "")
        + (f"{mean_rate_rps(scenario):,.0f} requests/s, " if rate else "")
        + f"{scenario.duration_s:g} s"
    )


def in_ms(value: float | None) -> str:
    """Return a latency in ms as text for a table; `-` for None."""
    return "-" if value is None else f"{value:.1f}"


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
    if any(total.gap_attainment is not None for total in totals):
        columns.append(TableColumn("gap attainment", lambda result: _share(result.total.gap_attainment), 2))
    if any(result.advice for result in results):
        columns.append(TableColumn("advice", _advice, 7))
    if any(total.lateness_p99_ms is not None for total in totals):
        columns.append(TableColumn("late p99 ms", lambda result: f"{result.total.lateness_p99_ms:.2f}", 3))
    return columns


def print_tenants(console: Console, results: "Sequence[RunResult]") -> None:
    """Print the results of each tenant as a table; nothing without tenants."""
    from tidegate.sim.result import TENANT_COLUMNS, tenant_lines

    if lines := tenant_lines(results):
        columns = [TableColumn(name, itemgetter(place)) for place, name in enumerate(TENANT_COLUMNS)]
        print_table(console, columns, lines, "tenants")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _advice(result: "RunResult") -> str:
    return f"{result.advice[-1].workers:+d}" if result.advice else "-"
