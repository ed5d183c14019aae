"""Charts over load: attainment and latency at every rate tried, including failed ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tidegate.report import (
    Chart,
    Colors,
    LegendEntry,
    LineMark,
    Plot,
    PlotAxis,
    PointMarks,
    RuleMark,
    chart_of,
    number_format,
)
from tidegate.report.number_format import rate, share

CHART_TITLE = "At which load does the worst model miss too many deadlines?"


@dataclass(frozen=True)
class LoadPoint:
    """One run at one load."""

    rate_rps: float
    attainment: float
    """Attainment of the worst model."""
    seed: int
    p99_ms: float | None = None
    """99th percentile of the latency of answered requests of all models, in ms."""


@dataclass(frozen=True)
class LoadCurve:
    """Runs of a policy or a server at several loads."""

    name: str
    tried: Sequence[LoadPoint]
    found_rps: float | None
    """Highest rate that it sustains, in requests per second; None: not found."""


def over_load(curves: Sequence[LoadCurve], limit: float, colors: Colors) -> Chart:
    """Return the chart of attainment over load; `limit`: maximum miss rate."""
    return chart_of(
        CHART_TITLE,
        load_plot(curves, limit, colors),
        legend=load_legend(curves, colors),
        note="Each dot is one run of one seed; the line is the decreasing one that fits them best. "
        "The number is the highest rate within the limit: the median of the seeds.",
        wide=True,
    )


def latency_over_load(curves: Sequence[LoadCurve], colors: Colors) -> Chart:
    """Return the chart of latency over load."""
    title = "How does latency grow with the load?"
    note = "99th percentile of answered requests: a policy that drops requests looks faster."
    return chart_of(title, latency_plot(curves, colors), legend=load_legend(curves, colors), note=note, wide=True)


def latency_plot(
    curves: Sequence[LoadCurve], colors: Colors, *, slo_ms: float | None = None, height: float = 220
) -> Plot:
    """Return the plot of median latency over the seeds at each rate.

    `slo_ms`: SLO to draw as a line. `height`: in pixels.
    """
    marks: list[LineMark | PointMarks | RuleMark] = [] if slo_ms is None else [RuleMark(slo_ms, f"SLO {slo_ms:g} ms")]
    known: list[float] = [] if slo_ms is None else [slo_ms]
    for curve in curves:
        of_rate: dict[float, list[float]] = {}
        for each in curve.tried:
            if each.p99_ms is not None:
                of_rate.setdefault(each.rate_rps, []).append(each.p99_ms)
        line = [(rate_rps, median(values)) for rate_rps, values in sorted(of_rate.items())]
        color = colors.of_contender(curve.name)
        says = [f"{curve.name}: {value:,.1f} ms at {rate(rate_rps)}/s" for rate_rps, value in line]
        marks += [LineMark(line, color, curve.name, colors.dash_of(curve.name)), PointMarks(line, color, says, 3)]
        known += [value for _, value in line]
    x = PlotAxis.over([each.rate_rps for curve in curves for each in curve.tried], "requests/s")
    return Plot(marks, x, PlotAxis.over(known, "99th percentile of latency", least=0.0, unit=" ms"), height)


def load_legend(curves: Sequence[LoadCurve], colors: Colors) -> list[LegendEntry]:
    """Return the legend: the color of each contender."""
    return [
        LegendEntry(each.name, colors.of_contender(each.name), colors.dash_of(each.name), "line") for each in curves
    ]


def load_plot(curves: Sequence[LoadCurve], limit: float, colors: Colors, *, height: float = 300) -> Plot:
    """Return the plot of the worst model's attainment over the rate.

    `limit`: maximum miss rate, drawn as a line. `height`: in pixels.
    """
    marks: list[LineMark | PointMarks | RuleMark] = [RuleMark(1 - limit, f"{number_format.limit(1 - limit)} on time")]
    for curve in curves:
        color = colors.of_contender(curve.name)
        if curve.found_rps:
            marks.append(RuleMark(curve.found_rps, rate(curve.found_rps), down=True, color=color))
        says = [
            f"{curve.name}, seed {each.seed}: {share(each.attainment)} at {rate(each.rate_rps)}/s"
            for each in curve.tried
        ]
        marks.append(LineMark(decreasing(curve.tried), color, curve.name, colors.dash_of(curve.name)))
        marks.append(PointMarks([(each.rate_rps, each.attainment) for each in curve.tried], color, says, 3.5))
    tried = [each for curve in curves for each in curve.tried]
    x = PlotAxis.over([each.rate_rps for each in tried], "requests/s")
    y = PlotAxis.shares([*(each.attainment for each in tried), 1 - 2 * limit], "on time, worst model")
    return Plot(marks, x, y, height)


def decreasing(tried: Sequence[LoadPoint]) -> list[tuple[float, float]]:
    """Return the nearest decreasing line to the runs (least squares: pool adjacent violators)."""
    blocks: list[tuple[float, int, list[float]]] = []  # sum of the attainments, how many, rates
    for rate_rps in sorted({each.rate_rps for each in tried}):
        own = [each.attainment for each in tried if each.rate_rps == rate_rps]
        blocks.append((sum(own), len(own), [rate_rps]))
        while len(blocks) > 1 and blocks[-1][0] / blocks[-1][1] > blocks[-2][0] / blocks[-2][1]:
            total, count, rates = blocks.pop()
            before = blocks.pop()
            blocks.append((before[0] + total, before[1] + count, before[2] + rates))
    return [(rate_rps, total / count) for total, count, rates in blocks for rate_rps in rates]
