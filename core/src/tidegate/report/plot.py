"""Plots: two axes and the marks between them.

Heights are in pixels; horizontal positions are fractions of the available width, so text keeps its size on a phone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tidegate.report.axis import PlotAxis
from tidegate.report.marks import CHARACTER, Mark, percent

ABOVE, BELOW, RIGHT = 24, 40, 18
"""Margins of a plot in pixels: above, below for the x axis, right for its last number."""
NO_UNIT, NO_LABEL = 8, 24
"""Margins above and below in pixels if an axis has no label."""
MIN_LEFT = 36


@dataclass(frozen=True)
class Plot:
    """A plot: marks over two axes."""

    marks: Sequence[Mark]
    x: PlotAxis
    y: PlotAxis
    height: float = 220

    @property
    def left(self) -> float:
        """Pixels left of the marks, for the numbers of the y axis."""
        longest = max((len(self.y.written(tick)) for tick in self.y.ticks), default=0)
        return max(MIN_LEFT, CHARACTER * longest + 14)

    def svg(self) -> str:
        """Return axes and marks as SVG for a space of 100 % by `height` pixels; they may extend beyond it."""
        return self._grid() + "".join(mark.svg(self.x, self.y, self.height) for mark in self.marks)

    def html(self, label: str) -> str:
        """Return the plot as HTML; `label`: text for screen readers."""
        above, below = ABOVE if self.y.label else NO_UNIT, BELOW if self.x.label else NO_LABEL
        unit = f'<p class="unit">{escape(self.y.label)}</p>' if self.y.label else ""
        return (
            f'<div class="plot" style="padding:{above}px {RIGHT}px {below}px {self.left:.0f}px">'
            f"{unit}"
            f'<svg role="img" aria-label="{escape(label)}" width="100%" height="{self.height:g}">{self.svg()}</svg>'
            "</div>"
        )

    def _grid(self) -> str:
        height = self.height
        drawn = []
        for tick in self.y.ticks:
            at = height * (1 - self.y.place(tick))
            drawn.append(
                f'<line class="grid" x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text x="-8" y="{at + 4:.1f}" text-anchor="end">{escape(self.y.written(tick))}</text>'
            )
        crowded = self.x.is_crowded((self.left - MIN_LEFT) / CHARACTER)
        for number, tick in enumerate(self.x.ticks):
            at_x = percent(self.x.place(tick))
            kind = ' class="second"' if number % 2 and crowded else ""
            drawn.append(
                f'<line class="tick" x1="{at_x}" x2="{at_x}" y1="{height:g}" y2="{height + 5:g}"/>'
                f'<text{kind} x="{at_x}" y="{height + 18:g}" text-anchor="middle">{escape(self.x.written(tick))}</text>'
            )
        drawn.append(f'<line class="edge" x1="0" x2="100%" y1="{height:g}" y2="{height:g}"/>')
        drawn.append(f'<text x="50%" y="{height + 35:g}" text-anchor="middle">{escape(self.x.label)}</text>')
        return "".join(drawn)
