"""The parts that every report is made of. They know nothing of what is reported, and need nothing beyond Python.

page      the frame: verdict, where it comes from, sections, data to take along, tables
chart     a chart: a title that asks a question, its answer drawn, a legend
plot      two axes and the marks between them, as SVG that fits any width
marks     lines, points, rules, bars
axis      scales, and ticks at round numbers
bars      horizontal bars in parts, a line each: outcomes, queue and execution
gantt     what ran where, with arrivals, deadlines and drops: to be zoomed, all at once
colours   which colour means what
picture   a chart as an SVG file by itself
words     numbers as sentences write them

`style.css` and `zoom.js` go into every page.
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
