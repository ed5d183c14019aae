"""Building blocks of HTML reports. They know nothing about what is reported and need nothing beyond Python.

page      the frame: verdict, origin, sections, data to download, tables
chart     a titled chart with its legend
plot      two axes and the marks between them, as SVG that fits any width
marks     lines, points, rules, bars
axis      scales, and ticks at round numbers
bars      horizontal stacked bars: outcomes, queue and execution
gantt     a Gantt chart with arrivals, deadlines and drops, which can be zoomed
colours   the meaning of each color
picture   a chart as an SVG file
words     numbers formatted for sentences

`style.css` and `zoom.js` are embedded in every page.
"""

from tidegate.report.axis import Axis
from tidegate.report.bars import Part, StackedBar, stacked_bars
from tidegate.report.chart import Chart, Entry, chart_of, facets
from tidegate.report.colours import OUTCOMES, Colours
from tidegate.report.gantt import Lane, Span, Strip, gantt
from tidegate.report.marks import Columns, Line, Points, Rule
from tidegate.report.page import Download, Origin, Page, Section, table
from tidegate.report.picture import picture
from tidegate.report.plot import Plot

__all__ = [
    "OUTCOMES",
    "Axis",
    "Chart",
    "Colours",
    "Columns",
    "Download",
    "Entry",
    "Lane",
    "Line",
    "Origin",
    "Page",
    "Part",
    "Plot",
    "Points",
    "Rule",
    "Section",
    "Span",
    "StackedBar",
    "Strip",
    "chart_of",
    "facets",
    "gantt",
    "picture",
    "stacked_bars",
    "table",
]
