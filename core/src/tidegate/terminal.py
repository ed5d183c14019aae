"""Where commands print to: a terminal, or a file or a pipe, at which nobody looks."""

import sys
from typing import Final

from rich.console import Console

UNBOUNDED: Final = 10_000
"""Columns where nobody looks at a terminal: no line is wrapped, and no cell cut, at what COLUMNS says or at 80."""


def console_for_tables(*, markup: bool = True) -> Console:
    """Standard output; where it is no terminal, tables are as wide as what is in them."""
    return Console(soft_wrap=True, highlight=False, markup=markup, width=None if sys.stdout.isatty() else UNBOUNDED)
