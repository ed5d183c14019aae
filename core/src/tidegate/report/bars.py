"""Horizontal stacked bars, one in each line, with names before and numbers behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tidegate.report.axis import PlotAxis
from tidegate.report.colors import css
from tidegate.report.marks import percent
from tidegate.report.number_format import named

THICK, LINE = 16, 24
"""Height of a bar, and distance from one bar to the next, in pixels."""


@dataclass(frozen=True)
class BarSegment:
    """One segment of a stacked bar."""

    value: float
    color: str
    says: str


@dataclass(frozen=True)
class StackedBar:
    """A horizontal bar made of segments."""

    name: str
    parts: Sequence[BarSegment]
    says: str
    """Text behind the bar, usually a number."""
    mark: float | None = None
    """Value at which a line crosses the bar, e.g. an SLO; None: no line."""


def stacked_bars(bars: Sequence[StackedBar], axis: PlotAxis, label: str) -> str:
    """Return bars over one axis as HTML; `label`: text for screen readers."""
    rows = "".join(
        f'<tr><th scope="row">{named(bar.name)}</th>'
        f'<td class="bar">{_drawn(bar, axis)}</td><td>{escape(bar.says)}</td></tr>'
        for bar in bars
    )
    crowded = axis.is_crowded()
    ticks = "".join(
        f'<text x="{percent(axis.place(tick))}" y="12" text-anchor="middle"'
        f"{' class=second' if number % 2 and crowded else ''}>"
        f"{escape(axis.written(tick))}</text>"
        for number, tick in enumerate(axis.ticks)
    )
    foot = (
        f'<tr><td></td><td class="bar"><svg width="100%" height="32">{ticks}<text x="50%" y="28" text-anchor="middle">'
    )
    foot += f"{escape(axis.label)}</text></svg></td><td></td></tr>"
    return f'<table class="bars" aria-label="{escape(label)}">{rows}{foot}</table>'


def _drawn(bar: StackedBar, axis: PlotAxis) -> str:
    drawn, begun = [], 0.0
    top = (LINE - THICK) / 2
    for part in bar.parts:
        start, end = min(1.0, axis.place(begun)), min(1.0, axis.place(begun + part.value))
        begun += part.value
        if end > start:
            drawn.append(
                f'<rect x="{percent(start)}" width="{percent(end - start)}" y="{top:g}" height="{THICK}" '
                f'fill="{css(part.color)}"><title>{escape(part.says)}</title></rect>'
            )
    if bar.mark is not None and axis.holds(bar.mark):
        at = percent(axis.place(bar.mark))
        drawn.append(f'<line class="mark" x1="{at}" x2="{at}" y1="0" y2="{LINE}"/>')
    empty = f'<rect class="empty" width="100%" y="{top:g}" height="{THICK}"/>'
    return f'<svg width="100%" height="{LINE}">{empty}{"".join(drawn)}</svg>'
