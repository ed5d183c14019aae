"""Tables that fit the terminal: columns are dropped by priority, and no cell is cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tidegate.terminal import UNBOUNDED_COLUMNS

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
