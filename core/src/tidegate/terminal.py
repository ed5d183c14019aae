"""Console output of commands, to a terminal, a file or a pipe; and errors in one line."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer
from rich.console import Console

UNBOUNDED_COLUMNS: Final = 10_000
"""Width of a file or a pipe in columns: no line is wrapped and no cell is cut, whatever COLUMNS is."""


def console_for_tables(*, markup: bool = True, quiet: bool = False) -> Console:
    """Return a console for standard output; if that is no terminal, tables are as wide as their content.

    `markup`: whether text may contain rich markup. `quiet`: print nothing, as standard output is for JSON.
    """
    width = None if sys.stdout.isatty() else UNBOUNDED_COLUMNS
    return Console(soft_wrap=True, highlight=False, markup=markup, width=width, quiet=quiet)


def describe_error(error: Exception) -> str:
    """Return the text of an error; that of an OSError begins with the name of the file."""
    if isinstance(error, OSError) and error.filename:
        remedy = "; name a file in it" if isinstance(error, IsADirectoryError) else ""
        return f"{os.fsdecode(error.filename)}: {error.strerror}{remedy}"
    return str(error)


@contextmanager
def errors_in_a_line(*kinds: type[Exception], source: Path | None = None) -> Iterator[None]:
    """Context that turns errors of these kinds into one line and exit status 1.

    `source`: file that the line names, unless the error is of another file.
    """
    try:
        yield
    except kinds as error:
        is_named = source is None or (isinstance(error, OSError) and error.filename)
        text = describe_error(error) if is_named else f"{source}: {error}"
        console_for_errors().print(f"error: {text}", style="red")
        raise typer.Exit(1) from error


def console_for_errors() -> Console:
    """Return a console for standard error that prints text unchanged."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
