"""Gantt charts: a lane for each worker, and strips for instants. All charts of a page zoom together."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tidegate.report.axis import PlotAxis
from tidegate.report.colors import css
from tidegate.report.marks import CHARACTER, percent
from tidegate.report.number_format import shortened

LANE, BAR, STRIP = 20, 14, 16
"""Height in pixels of a lane, of a bar in it, and of a strip."""
NS_PER_US, US_PER_MS = 1000, 1000
MAX_NAME = 18
ZOOM_BUTTONS = (
    ("in", "+", "closer"),
    ("out", "-", "further away"),
    ("left", "←", "earlier"),
    ("right", "→", "later"),
    ("all", "all", "the whole stretch"),
)


@dataclass(frozen=True)
class GanttSpan:
    """A span of time in a lane of a Gantt chart."""

    start_ns: int
    end_ns: int
    color: str
    says: str


@dataclass(frozen=True)
class GanttLane:
    """A worker's lane; gaps between spans are idle time."""

    name: str
    spans: Sequence[GanttSpan]


@dataclass(frozen=True)
class GanttStrip:
    """Instants in a strip, by color: (color, times in ns)."""

    name: str
    instants: Sequence[tuple[str, Sequence[int]]]


def gantt(label: str, strips: Sequence[GanttStrip], lanes: Sequence[GanttLane], until_ns: int) -> str:
    """Return the chart from 0 to `until_ns` as HTML; `label`: text for screen readers."""
    until_us = until_ns / NS_PER_US
    height = STRIP * len(strips) + LANE * len(lanes) + 4
    drawn, names, top = [], [], 0
    for strip in strips:
        names.append(_name(strip.name, top + STRIP - 4))
        for color, instants in strip.instants:
            path = "".join(f"M{at_ns // NS_PER_US} {top + 2}v{STRIP - 4}" for at_ns in instants)
            drawn.append(f'<path d="{path}" stroke="{css(color)}" vector-effect="non-scaling-stroke"/>')
        top += STRIP
    top += 4
    for lane in lanes:
        names.append(_name(lane.name, top + LANE - 6))
        bars = "".join(
            f'<rect x="{span.start_ns // NS_PER_US}" width="{(span.end_ns - span.start_ns) // NS_PER_US}" '
            f'fill="{css(span.color)}"><title>{escape(span.says)}</title></rect>'
            for span in lane.spans
        )
        drawn.append(
            f'<g transform="translate(0 {top + (LANE - BAR) // 2})"><rect class="idle" width="{until_us:g}"/>{bars}</g>'
        )
        top += LANE
    left = (
        CHARACTER
        * min(
            MAX_NAME,
            max((len(name) for name in [*(each.name for each in strips), *(each.name for each in lanes)]), default=0),
        )
        + 16
    )
    buttons = "".join(
        f'<button type="button" data-go="{go}" title="{says}">{sign}</button>' for go, sign, says in ZOOM_BUTTONS
    )
    inner = "".join(drawn)
    return (
        f'<div class="gantt" data-until="{until_us:g}"><p class="buttons">{buttons}</p>'
        f'<div style="padding-left:{left:.0f}px"><svg class="names" width="100%" height="{height}">{"".join(names)}'
        f'<svg class="zoomed cut" role="img" aria-label="{escape(label)}" tabindex="0" width="100%" height="{height}" '
        f'viewBox="0 0 {until_us:g} {height}" preserveAspectRatio="none" overflow="hidden">{inner}</svg></svg>'
        f'<svg class="ticks" width="100%" height="36">{_ticks(until_us)}</svg></div></div>'
    )


def _name(name: str, at: float) -> str:
    shown = escape(shortened(name, MAX_NAME))
    return f'<text x="-8" y="{at}" text-anchor="end">{shown}<title>{escape(name)}</title></text>'


def _ticks(until_us: float) -> str:
    """Return the initial ticks; `zoom.js` redraws them on zoom."""
    axis = PlotAxis.over([], "", least=0.0, most=until_us / US_PER_MS)
    ticks = "".join(
        f'<text x="{percent(axis.place(tick))}" y="14" text-anchor="middle">{escape(axis.written(tick))}</text>'
        for tick in axis.ticks
    )
    return f'{ticks}<text class="unit" x="50%" y="32" text-anchor="middle">time in the measured window, ms</text>'
