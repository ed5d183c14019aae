"""Heat maps: a figure over two fields, as a table whose cells are colored and have their numbers in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tidegate.report.colors import css

HEAT_COLORS = ("heat-low", "heat-middle", "heat-high")


@dataclass(frozen=True)
class HeatCell:
    """One cell of a heat map."""

    shown: str
    goodness: float
    """Position of its color on the scale: 0 is the worst, 1 the best."""
    says: str
    """Text of its tooltip."""
    is_kept: bool = False
    """Whether the cell meets the limit, which is marked independently of color."""


def heat_map(
    column_field: str,
    columns: Sequence[str],
    row_field: str,
    rows: Sequence[str],
    cells: Sequence[Sequence[HeatCell | None]],
    label: str,
) -> str:
    """Return the heat map as HTML.

    Args:
        column_field: heading above the columns.
        columns: their names.
        row_field: heading of the rows.
        rows: their names.
        cells: by row and column; None if unknown.
        label: caption for screen readers.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(map(_cell, line))}</tr>'
        for name, line in zip(rows, cells, strict=True)
    )
    return (
        f'<div class="scroll"><table class="heat" aria-label="{escape(label)}"><thead>'
        f'<tr><th class="field" colspan="{len(columns) + 1}">{escape(row_field)} ↓ {escape(column_field)} →</th></tr>'
        f"<tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: HeatCell | None) -> str:
    if cell is None:
        return "<td>-</td>"
    kept = ' class="kept"' if cell.is_kept else ""
    return f'<td{kept} style="background:{_color(cell.goodness)}" title="{escape(cell.says)}">{escape(cell.shown)}</td>'


def _color(goodness: float) -> str:
    """The color between the two nearest of `HEAT_COLORS`."""
    at = min(1.0, max(0.0, goodness)) * (len(HEAT_COLORS) - 1)
    below = min(int(at), len(HEAT_COLORS) - 2)
    return f"color-mix(in srgb,{css(HEAT_COLORS[below + 1])} {100 * (at - below):.0f}%,{css(HEAT_COLORS[below])})"
