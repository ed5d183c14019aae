"""Charts as SVG files, e.g. for a README, in light and dark mode."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from tidegate.report.chart import LegendEntry
from tidegate.report.colors import css
from tidegate.report.marks import CHARACTER
from tidegate.report.plot import BELOW, RIGHT, Plot

TITLE, LEGEND, UNIT, GAP = 34, 24, 22, 26
"""Height in pixels of the title, of the legend, of the unit of the y axis, and of the gap between plots."""


def picture(
    title: str, plots: Sequence[Plot], legend: Sequence[LegendEntry], *, width: int = 820, note: str = ""
) -> str:
    """Return plots, one below the other over one legend, as SVG text.

    `width`: in pixels; `note`: text below the title.
    """
    style = files(__package__).joinpath("style.css").read_text("utf-8")
    left = max(plot.left for plot in plots)
    wide = width - left - RIGHT
    drawn = [f'<text class="title" x="16" y="26">{escape(title)}</text>', _legend(legend, TITLE + 14)]
    top: float = TITLE + LEGEND
    for plot in plots:
        top += UNIT
        drawn.append(f'<text x="16" y="{top - 8:g}">{escape(plot.y.label)}</text>')
        drawn.append(
            f'<svg x="{left:g}" y="{top + 4:g}" width="{wide:g}" height="{plot.height:g}" overflow="visible">'
            f"{plot.svg()}</svg>"
        )
        top += plot.height + BELOW + GAP - UNIT
    if note:
        drawn.append(f'<text class="said" x="16" y="{top + 16:g}">{escape(note)}</text>')
        top += 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" width="{width}" height="{top:g}" '
        f'viewBox="0 0 {width} {top:g}" role="img" aria-label="{escape(title)}"><style>{style}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{"".join(drawn)}</svg>\n'
    )


def _legend(entries: Sequence[LegendEntry], top: float) -> str:
    drawn, at = [], 16.0
    for entry in entries:
        dash = f' stroke-dasharray="{entry.dash}"' if entry.dash else ""
        drawn.append(
            f'<line x1="{at:g}" x2="{at + 22:g}" y1="{top - 4:g}" y2="{top - 4:g}" stroke="{css(entry.color)}" '
            f'stroke-width="2.5"{dash}/><text x="{at + 28:g}" y="{top:g}">{escape(entry.name)}</text>'
        )
        at += 28 + CHARACTER * len(entry.name) + 24
    return "".join(drawn)
