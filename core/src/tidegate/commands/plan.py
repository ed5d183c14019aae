"""`tidegate plan`: computes a layout for a problem with a planner."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import check_output_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from tidegate.api import Plan, PlannerSpec, VersionedDocument
    from tidegate.commands.common import TableColumn


def plan(
    name: Annotated[str, typer.Argument(help="Planner by name (`tidegate plugins` lists them).")],
    problem: Annotated[Path, typer.Argument(help="Problem file (JSON or YAML); its paths are relative to its folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the plan to this file.", callback=check_output_file)
    ] = None,
    layout: Annotated[
        Path | None,
        typer.Option(
            "--layout", help="Write the layout to this file, to simulate or serve it.", callback=check_output_file
        ),
    ] = None,
    taken: Annotated[
        Path | None,
        typer.Option("--from", help="Read this plan of the problem, and do not search for one."),
    ] = None,
    time_limit_s: Annotated[float, typer.Option(min=0.1, help="Seconds to search for a better plan.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Plan a layout of models on GPUs with a planner.

    Plan a layout: the best that the planner finds in the time, and how far from the best possible it may be.

    Exits with 1 where there is none, and says why. Examples:

    tidegate plan ppipe problem.yaml -o plan.json --layout layout.json --time-limit-s 30

    tidegate plan ppipe problem.yaml --from plan.json --layout layout.json
    """
    from tidegate.api import PlanningError
    from tidegate.commands.common import console_for_errors, console_for_tables, errors_in_a_line, print_table
    from tidegate.host import PluginError, Plugins
    from tidegate.schemas import DocumentError, read_document, write_document

    with errors_in_a_line(PluginError, DocumentError, PlanningError, OSError):
        planner = Plugins.installed().planner(name)
        if layout is not None and planner.layout is None:
            raise PlanningError(f"--layout: plans of {name!r} say nothing of partitions and workers: leave it out")
        given = read_document(problem, planner.problem)
        if taken is None:
            with stdout_to_stderr():
                found = run_under_bar(planner, given, time_limit_s, console_for_errors())
        else:
            found = read_document(taken, planner.plan)
        if output is not None:
            write_document(output, found)
        if layout is not None and planner.layout is not None:
            write_document(layout, planner.layout(given, found))
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    console = console_for_tables()
    print_table(console, _columns(found.table), found.table, f"{name}: {problem}")
    console.print(found.summary, markup=False)
    far = (
        "unknown"
        if found.gap is None
        else "none, no plan is better"
        if found.gap < 1e-6
        else f"at most {found.gap:.1%}"
    )
    console.print(f"objective {found.objective:.6g}, gap to the best possible: {far}", markup=False)
    for what, written in (("plan", output), ("layout", layout)):
        if written is not None:
            console.print(f"{what}: {written}", markup=False, style="dim")


def _columns(rows: "Sequence[Mapping[str, str]]") -> "list[TableColumn]":
    """Return the columns of a plan; where they do not fit, those with one value are left out first, then the last."""
    from rich.markup import escape

    from tidegate.commands.common import TableColumn

    def cell_of(name: str) -> "Callable[[Mapping[str, str]], str]":
        return lambda row: escape(row[name])

    names = [*rows[0]] if rows else []
    return [
        TableColumn(
            name,
            cell_of(name),
            place and place + len(names) * (len({row[name] for row in rows}) == 1),
        )
        for place, name in enumerate(names)
    ]


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Context that redirects descriptor 1 to stderr, since solvers written in C print to it."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def run_under_bar(
    planner: "PlannerSpec", problem: "VersionedDocument", time_limit_s: float, console: "Console"
) -> "Plan":
    """Run a planner, with a progress bar on a terminal: the best objective, its gap and the time left.

    `time_limit_s`: seconds that the planner may search; they begin after its libraries are imported. Raises
    PlanningError if the planner finds no plan.
    """
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    from tidegate.api.late_import import load
    from tidegate.api.planner import gap_between

    load(planner.run)

    class TimeBar(ProgressColumn):
        """Bar of the time used; it moves while a solver is silent."""

        def render(self, task: Task) -> ProgressBar:
            return ProgressBar(total=time_limit_s, completed=min(task.elapsed or 0.0, time_limit_s), width=40)

    class TimeLeft(ProgressColumn):
        """Text of the seconds that the planner has left."""

        def render(self, task: Task) -> Text:
            return Text(f"{max(time_limit_s - (task.elapsed or 0.0), 0.0):.0f} s left")

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeBar(), TimeLeft())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(planner.name, total=None)

        def report(*, objective: float | None = None, bound: float | None = None) -> float:
            if objective is not None:
                gap = "unknown" if bound is None else f"at most {gap_between(objective, bound):.1%}"
                bar.update(task, description=f"{planner.name}: {objective:.6g}, gap {gap}")
            return bar.tasks[task].elapsed or 0.0

        return planner.run(problem, time_limit_s=time_limit_s, progress=report)
