"""Parts of the programs here: command line, console, tables, files, and the results of many simulations."""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from tidegate.commands.common import with_progress
from tidegate.sim.parallel import run_parallel

T = TypeVar("T")
R = TypeVar("R")


def parser_of(name: str, documentation: str | None, *, jobs: bool = False) -> argparse.ArgumentParser:
    """Return a parser with `--json FILE`.

    `name`: of the program, `bench.NAME`; `documentation`: docstring of its module; `jobs`: whether it has `--jobs N`,
    for `run_all`.
    """
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=documentation, formatter_class=raw)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    if jobs:
        parser.add_argument("--jobs", type=int, default=-1, help="simulations at once; default: as many as cores")
    return parser


def console_of(columns: int) -> Console:
    """Return a console that is this wide where it is no terminal."""
    return Console(width=None if os.isatty(1) else columns, highlight=False)


def write_json(path: Path | None, figures: object) -> None:
    """Write figures to the file of `--json`, if it was given."""
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def run_all(console: Console, what: str, task: Callable[[T], R], tasks: Sequence[T], jobs: int) -> list[R]:
    """Run a picklable function for each task in parallel; return the results in order, with progress meanwhile.

    `what`: text before the bar; `task`: the function; `tasks`: its arguments; `jobs`: of `--jobs`.
    """
    return with_progress(console, what, run_parallel(task, tasks, jobs=jobs), len(tasks))


def print_table(console: Console, title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table whose first column is text, and the others figures."""
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)
