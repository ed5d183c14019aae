"""Marks between two axes; each renders itself as SVG into 100 % width and `height` pixels."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from tidegate.report.axis import PlotAxis
from tidegate.report.colors import INK, css

PLOT_WIDTH_UNITS = 1000
"""Width of a plot in SVG units; it is stretched to the available width."""
ROW_PX = 15
"""Height of a row of labels."""
CHARACTER, NARROW = 7.2, 150
"""Width in pixels of a character, and of the marks of a narrow plot."""
Point = tuple[float, float]


class Mark(Protocol):
    """Base class of marks in a plot."""

    def svg(self, x: PlotAxis, y: PlotAxis, height: float) -> str:
        """Return the mark as SVG over axes `x` and `y`; `height`: of the plot, in pixels."""


@dataclass(frozen=True)
class LineMark:
    """A line through points in order; None interrupts it."""

    points: Sequence[Point | None]
    color: str
    name: str = ""
    dash: str = ""
    width: float = 2

    def svg(self, x: PlotAxis, y: PlotAxis, height: float) -> str:
        """Return a path over axes `x` and `y`, `height` pixels high, whose stroke width does not change when
        stretched.
        """
        path, pen = [], "M"
        for point in self.points:
            if point is None:
                pen = "M"
                continue
            path.append(f"{pen}{PLOT_WIDTH_UNITS * x.place(point[0]):.2f} {height * (1 - y.place(point[1])):.2f}")
            pen = "L"
        dash = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return stretched(
            f'<path d="{"".join(path)}" fill="none" stroke="{css(self.color)}" stroke-width="{self.width:g}"{dash} '
            f'stroke-linejoin="round" vector-effect="non-scaling-stroke">{titled(self.name)}</path>',
            height,
        )


@dataclass(frozen=True)
class PointMarks:
    """Dots with tooltips in one plot."""

    points: Sequence[Point]
    color: str
    says: Sequence[str] = ()
    radius: float = 4
    hollow: bool = False

    def svg(self, x: PlotAxis, y: PlotAxis, height: float) -> str:
        """Return a circle for each point over axes `x` and `y`; `height`: of the plot, in pixels."""
        fill = "none" if self.hollow else css(self.color)
        says = self.says or [""] * len(self.points)
        return "".join(
            f'<circle cx="{percent(x.place(at))}" cy="{height * (1 - y.place(value)):.1f}" r="{self.radius:g}" '
            f'fill="{fill}" fill-opacity=".75" stroke="{css(self.color)}">{titled(text)}</circle>'
            for (at, value), text in zip(self.points, says, strict=True)
        )


@dataclass(frozen=True)
class RuleMark:
    """A dotted line across the plot (`down`: from top to bottom) at a value, with a label."""

    at: float
    says: str
    down: bool = False
    color: str = INK
    row: int = 0
    """Row of the label of a line from top to bottom, from the lowest on: near lines have labels in different rows."""
    is_right: bool = False
    """Whether the label of a line across stands at its right end."""

    def svg(self, x: PlotAxis, y: PlotAxis, height: float) -> str:
        """Return the line, with its label at the less crowded end; `height`: of the plot, in pixels."""
        stroke = f'stroke="{css(self.color)}" stroke-dasharray="3 4"'
        if self.down:
            at = percent(x.place(self.at))
            place = x.place(self.at)
            fits = (1 - place) * NARROW > CHARACTER * len(self.says) + 5
            anchor, shift = ("start", 5) if fits or place < 0.5 else ("end", -5)
            return (
                f'<line x1="{at}" x2="{at}" y1="0" y2="{height:g}" {stroke}/>'
                f'<text x="{at}" dx="{shift}" y="{height - 6 - ROW_PX * self.row:g}" text-anchor="{anchor}" '
                f'class="said">{escape(self.says)}</text>'
            )
        at_y = height * (1 - y.place(self.at))
        above = at_y > 18
        end = 'x="100%" dx="-4" text-anchor="end"' if self.is_right else 'x="0" dx="4"'
        return (
            f'<line x1="0" x2="100%" y1="{at_y:.1f}" y2="{at_y:.1f}" {stroke}/>'
            f'<text {end} y="{at_y + (-5 if above else 15):.1f}" class="said">{escape(self.says)}</text>'
        )


@dataclass(frozen=True)
class ColumnMarks:
    """Upright bars, each from `start` to `end` on the x axis and from zero to its value."""

    bars: Sequence[tuple[float, float, float]]
    """Bars as (start, end, value), in the units of the axes."""
    color: str
    says: Sequence[str] = ()

    def svg(self, x: PlotAxis, y: PlotAxis, height: float) -> str:
        """Return a rectangle for each bar over axes `x` and `y`; `height`: of the plot, in pixels."""
        says = self.says or [""] * len(self.bars)
        drawn = []
        for (start, end, value), text in zip(self.bars, says, strict=True):
            top = height * (1 - y.place(value))
            drawn.append(
                f'<rect x="{percent(x.place(start))}" width="{percent(x.place(end) - x.place(start))}" y="{top:.1f}" '
                f'height="{height - top:.1f}" fill="{css(self.color)}">{titled(text)}</rect>'
            )
        return "".join(drawn)


def stretched(drawn: str, height: float) -> str:
    """Return SVG drawn PLOT_WIDTH_UNITS wide and `height` pixels high, stretched to the available width."""
    return (
        f'<svg width="100%" height="{height:g}" viewBox="0 0 {PLOT_WIDTH_UNITS} {height:g}" preserveAspectRatio="none" '
        f'class="cut" overflow="hidden">{drawn}</svg>'
    )


def percent(share: float) -> str:
    """Return a fraction as an SVG length."""
    return f"{100 * share:.2f}%"


def titled(text: str) -> str:
    """Return a tooltip as SVG, which screen readers read, too; empty without text."""
    return f"<title>{escape(text)}</title>" if text else ""
