"""HTML page of a comparison, which needs no network."""

from dataclasses import replace

from tidegate.report import (
    Chart,
    Colors,
    LegendEntry,
    LineMark,
    Page,
    PageOrigin,
    PageSection,
    Plot,
    PlotAxis,
    PointMarks,
    RuleMark,
    chart_of,
    number_format,
    table,
)
from tidegate.sim import charts
from tidegate.sim.document import Document, rows_csv
from tidegate.sim.tables import downloads
from tidegate_loadtest.comparison.findings import (
    ATTAINMENT_FIGURE,
    GOODPUT_FIGURE,
    ComparedFigure,
    TargetContrast,
    contrast_of,
    figures_of,
    verdicts,
    warnings,
)
from tidegate_loadtest.comparison.intervals import CONFIDENCE_LEVEL, MIN_VALUES_FOR_INTERVAL
from tidegate_loadtest.comparison.runs import Comparison
from tidegate_loadtest.comparison.table import TENANT_HEADINGS, difference_cell, figure_cells, tenant_cells

TENANT_NOTE = "On time: of the admitted requests. Rate limited: rejected by the quota, of all requests of the tenant."
MAX_AXIS_NAME_CHARACTERS = 18
"""Maximum length of a name beside or below an axis."""
MIN_SHOWN_POINTS = 0.5
"""Percentage points of attainment that the axis of differences shows on both sides of zero at least."""


def comparison_page(title: str, comparison: Comparison, document: Document, origin: PageOrigin) -> str:
    """Return the page: verdicts, their evidence, batching settings of each target, all figures."""
    rounds = len(comparison.complete)
    rows = [row for live in comparison.lives for row in live.result.rows]
    return Page(
        title,
        verdicts(comparison) or ["No round is complete: nothing can be compared."],
        origin,
        {
            "Rounds": f"{rounds} of {len(comparison.seeds)}",
            "Seeds": ", ".join(map(str, comparison.seeds)),
            "Targets": ", ".join(f"{target.name} ({target.address})" for target in comparison.targets),
        },
        document["scenario"],
        [*(_parts(comparison) if rounds else ()), _settings(comparison)],
        warnings(comparison),
        downloads(document, rows_csv(rows)),
    ).html()


def _parts(comparison: Comparison) -> list[Chart | PageSection]:
    base, *others = comparison.targets
    figures = figures_of(comparison)
    colors = Colors(comparison.scenario.request_names, (target.name for target in comparison.targets))
    results = [live.result for target in comparison.targets for live in comparison.of(target)]
    slos_ms = comparison.scenario.slos_ms
    headings = [figure.heading for figure in figures]
    differences = [
        [
            target.name,
            *(difference_cell(comparison, target, base, figure).replace(" (", "\n(") for figure in figures),
        ]
        for target in others
    ]
    tenants = tenant_cells(comparison)
    found = [
        _rounds(comparison, ATTAINMENT_FIGURE, "What fraction of requests is on time, round by round?", colors),
        _against(comparison, colors),
        charts.outcomes(results, "target"),
        charts.latency_curves(results, colors),
        charts.attainment_over_time(results, colors),
        charts.waiting_and_executing(results, slos_ms),
        charts.batch_sizes(results),
        replace(
            _rounds(comparison, GOODPUT_FIGURE, "How large is the goodput of each, round by round?", colors), wide=True
        ),
        PageSection(
            "The figures",
            table(["target", *headings, "late p99 ms"], figure_cells(comparison, figures)),
            f"Means of the rounds (and their {CONFIDENCE_LEVEL:.0%} confidence intervals: Student's t, cut to what the "
            "figure can be). The last column: how late the load generator was, in the worst round.",
        ),
        PageSection("The tenants", table(TENANT_HEADINGS, tenants), TENANT_NOTE) if tenants else None,
        PageSection(f"Against {base.name}, in the same rounds", table(["target", *headings], differences)),
    ]
    return [each for each in found if each]


def _settings(comparison: Comparison) -> PageSection:
    lines = [
        [target.name, target.address, settings.server, model, how, target.started_with or "as it was"]
        for target in comparison.targets
        if (settings := comparison.settings.get(target.name))
        for model, how in settings.models.items()
    ]
    head = ["target", "address", "server", "model", "batching", "started with"]
    return PageSection("How does each target batch?", table(head, lines), "By the word of the servers themselves.")


def _rounds(comparison: Comparison, figure: ComparedFigure, title: str, colors: Colors) -> Chart:
    """A line for each target over the rounds."""
    numbers = [comparison.seeds.index(seed) + 1 for seed in comparison.complete]
    marks: list[LineMark | PointMarks] = []
    known = []
    for target in comparison.targets:
        values = [figure.value(live.result.total) for live in comparison.of(target)]
        points = [(float(number), value) for number, value in zip(numbers, values, strict=True) if value is not None]
        known += [value for _, value in points]
        says = [f"{target.name}, round {number:g}: {figure.shown(value)}" for number, value in points]
        color = colors.of_contender(target.name)
        marks += [LineMark(points, color, target.name, colors.dash_of(target.name)), PointMarks(points, color, says)]
    ticks = tuple(map(float, numbers))
    x = PlotAxis("round", min(ticks) - 0.5, max(ticks) + 0.5, ticks, lambda number: f"{number:g}")
    y = (
        PlotAxis.shares(known, "on time")
        if figure is ATTAINMENT_FIGURE
        else PlotAxis.over(known, figure.heading, least=0.0)
    )
    names = [target.name for target in comparison.targets]
    legend = [LegendEntry(name, colors.of_contender(name), colors.dash_of(name), "line") for name in names]
    return chart_of(title, Plot(marks, x, y), legend=legend)


def _against(comparison: Comparison, colors: Colors) -> Chart | None:
    """The difference of each target to the first in points of attainment, which cannot be more than 100."""
    base, *others = comparison.targets
    found = [
        contrast
        for target in others
        if (contrast := contrast_of(comparison, target, base, ATTAINMENT_FIGURE)) is not None
    ]
    if not found:
        return None
    marks: list[LineMark | PointMarks | RuleMark] = [RuleMark(0.0, f"{base.name}", down=True)]
    ends = [-MIN_SHOWN_POINTS, MIN_SHOWN_POINTS]
    for row, contrast in enumerate(found):
        at, (mean, low, high) = len(found) - row - 0.5, _points(contrast)
        color = colors.of_contender(contrast.target.name)
        marks += [
            LineMark([(low, at), (high, at)], color, width=3),
            PointMarks([(mean, at)], color, [str(contrast)], 6),
        ]
        ends += [low, high]
    names = [number_format.shortened(contrast.target.name, MAX_AXIS_NAME_CHARACTERS) for contrast in found][::-1]
    y = PlotAxis("", 0.0, float(len(found)), tuple(row + 0.5 for row in range(len(found))), lambda at: names[int(at)])
    x = PlotAxis.over(ends, f"points against {number_format.shortened(base.name, MAX_AXIS_NAME_CHARACTERS)}")
    title = f"Is the difference to {base.name} more than chance?"
    note = (
        f"Mean and {CONFIDENCE_LEVEL:.0%} confidence interval: chance is ruled out where the line does not reach zero."
    )
    if len(comparison.complete) < MIN_VALUES_FOR_INTERVAL:
        note = f"Means: fewer than {MIN_VALUES_FOR_INTERVAL} rounds have no interval, and do not rule out chance."
    return chart_of(title, Plot(marks, x, y, height=40 + 46 * len(found)), note=note)


def _points(contrast: TargetContrast) -> tuple[float, float, float]:
    interval = contrast.difference
    low, high = (interval.mean if end is None else end for end in (interval.low, interval.high))
    return 100 * interval.mean, 100 * low, 100 * high
