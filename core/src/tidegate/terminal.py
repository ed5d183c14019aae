"""Console output of commands, to a terminal, a file or a pipe."""

import sys
from typing import Final

from rich.console import Console

UNBOUNDED_COLUMNS: Final = 10_000
"""Width of a file or a pipe in columns: no line is wrapped and no cell is cut, whatever COLUMNS is."""


def console_for_tables(*, markup: bool = True, quiet: bool = False) -> Console:
    """Return a console for standard output; if that is no terminal, tables are as wide as their content.

    `markup`: whether text may contain rich markup. `quiet`: print nothing, as standard output is for JSON.
    """
    width = None if sys.stdout.isatty() else UNBOUNDED_COLUMNS
    return Console(soft_wrap=True, highlight=False, markup=markup, width=width, quiet=quiet)
