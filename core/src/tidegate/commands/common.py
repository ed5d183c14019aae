"""Helpers of the commands that run scenarios: error messages, progress bar, output files."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from tidegate.terminal import console_for_tables

if TYPE_CHECKING:
    from tidegate.report import PageOrigin
    from tidegate.workload import Scenario

__all__ = [
    "console_for_tables",
    "describe_error",
    "errors_explained",
    "in_ms",
    "origin",
    "title_of",
    "with_progress",
    "write_results",
]

T = TypeVar("T")
SIM_EXTRA_MODULES = {"numpy", "joblib", "yaml"}
"""Modules that the extra `sim` installs."""


def describe_error(error: Exception) -> str:
    """Return the text of an error; that of an OSError begins with the name of the file."""
    if isinstance(error, OSError) and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


@contextmanager
def errors_explained() -> Iterator[None]:
    """Context that turns errors that users can remedy into one line and exit status 1."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        from tidegate.host import PluginError
        from tidegate.parallel_backend import ParallelBackendError
        from tidegate.sim.run import SimulationError
        from tidegate.workload import ScenarioError, TraceError

        known = (PluginError, ParallelBackendError, SimulationError, ScenarioError, TraceError, OSError)
        try:
            yield
        except known as error:
            console.print(f"[red]error:[/] {escape(describe_error(error))}")
            raise typer.Exit(1) from error
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SIM_EXTRA_MODULES:
            raise
        hint = escape('pip install "tidegate[sim]"')
        console.print(f"[red]error:[/] the simulator needs {error.name}, which is not installed: {hint}")
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
