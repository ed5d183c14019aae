"""Charts of a report: a title, a legend, and plots, bars or lanes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from tidegate.report.colors import css
from tidegate.report.number_format import named
from tidegate.report.plot import Plot


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a legend."""

    name: str
    color: str
    dash: str = ""
    shape: str = "box"
    """`box` or `line`."""


@dataclass(frozen=True)
class Chart:
    """A titled chart: plots, bars or lanes, with a legend."""

    title: str
    """Title, phrased as a question."""
    body: str
    """Content as HTML."""
    legend: Sequence[LegendEntry] = ()
    note: str = ""
    """Note below the chart that explains how to read it."""
    wide: bool = False
    """Whether the chart takes the whole width of the page."""

    def html(self) -> str:
        """Return the chart as HTML."""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        kind = ' class="wide"' if self.wide else ""
        return (
            f"<figure{kind}><figcaption><h2>{escape(self.title)}</h2>{note}</figcaption>"
            f"{legend(self.legend)}{self.body}</figure>"
        )


def chart_of(
    title: str, plot: Plot, *, legend: Sequence[LegendEntry] = (), note: str = "", wide: bool = False
) -> Chart:
    """Return the chart of one plot; the arguments are the fields of `Chart`: title, legend, note, wide."""
    return Chart(title, plot.html(title), legend, note, wide)


def facets(
    title: str,
    parts: Iterable[tuple[str, Plot | str]],
    *,
    legend: Sequence[LegendEntry] = (),
    note: str = "",
    wide: bool = True,
    small: bool = False,
) -> Chart:
    """Return the chart of several plots (or HTML) side by side, with titles unless there is only one.

    `title`, `legend`, `note`, `wide`: fields of `Chart`. `parts`: (title, plot) pairs. `small`: many similar plots, of
    which two fit beside each other on a phone.
    """
    drawn = [(name, part if isinstance(part, str) else part.html(f"{title} {name}")) for name, part in parts]
    if len(drawn) == 1:
        return Chart(title, drawn[0][1], legend, note)
    inner = "".join(f"<div><h3>{named(name)}</h3>{body}</div>" for name, body in drawn)
    kind = "facets small" if small else "facets"
    return Chart(title, f'<div class="{kind}">{inner}</div>', legend, note, wide)


def legend(entries: Sequence[LegendEntry]) -> str:
    """Return the legend as HTML; empty if there is only one color."""
    if not entries:
        return ""
    items = "".join(f"<li>{_key(entry)}{named(entry.name)}</li>" for entry in dict.fromkeys(entries))
    return f'<ul class="legend">{items}</ul>'


def _key(entry: LegendEntry) -> str:
    color, wide = css(entry.color), 22 if entry.shape == "line" else 12
    dash = f' stroke-dasharray="{entry.dash}"' if entry.dash else ""
    drawn = {
        "line": f'<line x1="0" x2="22" y1="6" y2="6" stroke="{color}" stroke-width="2.5"{dash}/>',
        "box": f'<rect width="12" height="12" rx="2" fill="{color}"/>',
    }[entry.shape]
    return f'<svg width="{wide}" height="12" aria-hidden="true">{drawn}</svg>'
