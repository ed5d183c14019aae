"""Building blocks of HTML reports, independent of the subject of a report; only Python's standard library is needed.

page      the frame: verdict, origin, sections, data to download, tables
chart     a titled chart with its legend
plot      two axes and the marks between them, as SVG that fits any width
marks     lines, points, rules, bars
axis      scales, and ticks at round numbers
bars      horizontal stacked bars: outcomes, queue and execution
gantt     a Gantt chart with arrivals, deadlines and drops, which can be zoomed
heat_map  a figure over two fields
colors   the meaning of each color
picture   a chart as an SVG file
number_format  numbers formatted for sentences

`style.css` and `zoom.js` are embedded in every page.
"""

from tidegate.report.axis import PlotAxis
from tidegate.report.bars import BarSegment, StackedBar, stacked_bars
from tidegate.report.chart import Chart, LegendEntry, chart_of, facets
from tidegate.report.colors import OUTCOME_COLORS, Colors
from tidegate.report.gantt import GanttLane, GanttSpan, GanttStrip, gantt
from tidegate.report.heat_map import HeatCell, heat_map
from tidegate.report.marks import ColumnMarks, LineMark, PointMarks, RuleMark
from tidegate.report.page import Download, Page, PageOrigin, PageSection, table
from tidegate.report.picture import picture
from tidegate.report.plot import Plot

__all__ = [
    "OUTCOME_COLORS",
    "BarSegment",
    "Chart",
    "Colors",
    "ColumnMarks",
    "Download",
    "GanttLane",
    "GanttSpan",
    "GanttStrip",
    "HeatCell",
    "LegendEntry",
    "LineMark",
    "Page",
    "PageOrigin",
    "PageSection",
    "Plot",
    "PlotAxis",
    "PointMarks",
    "RuleMark",
    "StackedBar",
    "chart_of",
    "facets",
    "gantt",
    "heat_map",
    "picture",
    "stacked_bars",
    "table",
]
