"""Output of commands to a terminal, or to a file or a pipe."""

import sys
from typing import Final

from rich.console import Console

UNBOUNDED_COLUMNS: Final = 10_000
"""Columns of a file or a pipe: no line is wrapped and no cell is cut, whatever COLUMNS says."""


def console_for_tables(*, markup: bool = True) -> Console:
    """Return a console for standard output; where that is no terminal, tables are as wide as their content."""
    return Console(
        soft_wrap=True, highlight=False, markup=markup, width=None if sys.stdout.isatty() else UNBOUNDED_COLUMNS
    )
