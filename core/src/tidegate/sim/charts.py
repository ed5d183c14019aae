"""Charts of a run, simulated or live, and of runs over load; each title asks the question that the chart answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

from tidegate.report import (
    BarSegment,
    Chart,
    Colors,
    ColumnMarks,
    GanttLane,
    GanttSpan,
    GanttStrip,
    LegendEntry,
    LineMark,
    Plot,
    PlotAxis,
    PointMarks,
    RuleMark,
    StackedBar,
    chart_of,
    facets,
    gantt,
    number_format,
    stacked_bars,
)
from tidegate.report.colors import DASH_PATTERNS, EXECUTING, INK, OTHER, OUTCOME_COLORS, WAITING
from tidegate.report.marks import Point
from tidegate.report.number_format import plural, rate, share
from tidegate.sim.chart_data import DROPPED, ON_TIME, ArrivalMark, ModelDetail
from tidegate.sim.result import ResultRow, RunResult
from tidegate.sim.verdicts import by_policy
from tidegate.workload.arrivals import NS_PER_S

MAX_BARS = 24
"""Maximum number of models with a bar each: those with the most misses."""
MAX_LABEL_ROWS = 8
"""Maximum number of rows of labels of near rates, one above the other."""
MAX_PANELS = 12
"""Maximum number of models with their own curve of latency / SLO: those with the most misses."""
MAX_TALL_CURVES = 3
"""Maximum number of curves that are drawn higher."""
LATENCY_SLO_RATIOS = (1.5, 2.0)
"""Ends of the axis of latency / SLO: the first one that contains all values, otherwise the last."""
MAX_COLORED = len(DASH_PATTERNS)
"""Maximum number of models with a color and a dash pattern: those with the most misses."""
MAX_POINTS = 200
"""Maximum number of points of a curve."""


def outcomes(results: Sequence[RunResult], contender: str = "policy") -> Chart:
    """Return the chart of outcomes as fractions: a bar for each model under each contender."""
    axis = PlotAxis.shares([], "fraction of requests", from_zero=True)
    legend = [LegendEntry(name, color) for name, color in OUTCOME_COLORS.items()]
    title = (
        f"How did requests end under each {contender}?" if _single(results) else "How did each model's requests end?"
    )
    return _bars(results, title, axis, legend, _outcomes_of)


def waiting_and_executing(results: Sequence[RunResult], slos_ms: dict[str, float | None]) -> Chart | None:
    """Return the chart of queueing and execution time of answered requests, relative to their SLOs; None if unknown.

    `slos_ms`: SLO in ms by model; None: no SLO.
    """

    def bar(name: str, rows: Sequence[ResultRow]) -> StackedBar | None:
        slo_ms = slos_ms.get(rows[0].model)
        known = [row for row in rows if row.mean_waiting_ms is not None and row.mean_executing_ms is not None]
        answered = sum(row.answered for row in known)
        if not answered or slo_ms is None:
            return None
        waiting_ms = sum((row.mean_waiting_ms or 0) * row.answered for row in known) / answered
        executing_ms = sum((row.mean_executing_ms or 0) * row.answered for row in known) / answered
        parts = [
            BarSegment(waiting_ms / slo_ms, WAITING, f"waiting {waiting_ms:.1f} ms"),
            BarSegment(executing_ms / slo_ms, EXECUTING, f"executing {executing_ms:.1f} ms"),
        ]
        return StackedBar(name, parts, f"{waiting_ms:.1f} + {executing_ms:.1f} of {slo_ms:g} ms", mark=1.0)

    if not any(bar("", [row]) for result in results for row in result.rows[1:]):
        return None
    label = "mean time of answered requests, of the SLO"
    shares = PlotAxis(label, 0.0, 1.25, (0.0, 0.5, 1.0), lambda value: f"{100 * value:.0f} %")
    legend = [LegendEntry("waiting (queue and network)", WAITING), LegendEntry("executing", EXECUTING)]
    return _bars(results, "Where does the time go: waiting or executing?", shares, legend, bar)


def latency_curves(results: Sequence[RunResult], colors: Colors) -> Chart | None:
    """Return the chart of latency relative to the SLO: cumulative distributions, one plot for each model.

    Each contender has a line. None if no model has an SLO.
    """
    of_policy = {policy: _details(own) for policy, own in by_policy(results).items()}
    curves: dict[str, dict[str, list[Point]]] = {}
    for policy, details in of_policy.items():
        for model, own in details.items():
            if own[0].slo_ms is not None and own[0].accepted:
                curves.setdefault(model, {})[policy] = _curve(own)
    ratios = [curve[-1][0] for own in curves.values() for curve in own.values() if curve]
    if not ratios:
        return None
    most = next((ratio for ratio in LATENCY_SLO_RATIOS if ratio >= max(ratios)), LATENCY_SLO_RATIOS[-1])
    steps = tuple(step / 2 for step in range(round(2 * most) + 1))
    x = PlotAxis("latency / SLO", 0.0, most, steps, lambda value: f"{value:g}")
    y = PlotAxis.shares([], "fraction of requests", from_zero=True)
    title = "What fraction of requests is answered within which fraction of the SLO?"
    note = "If a curve ends below 100 %, the rest was answered later, or not at all."
    rule, legend = RuleMark(1.0, "SLO", down=True), _contenders(of_policy, colors)

    def lines(own: Mapping[str, Sequence[Point]], name: str) -> list[LineMark]:
        return [
            LineMark(curve, colors.of_contender(policy), name or policy, colors.dash_of(policy))
            for policy, curve in own.items()
        ]

    if _single(results):
        (only,) = curves.values()
        return chart_of(title, Plot([rule, *lines(only, "")], x, y), legend=legend, note=note)
    alone = len(of_policy) == 1
    together: list[LineMark] = []
    if alone:
        every = [
            each for own in of_policy.values() for model, details in own.items() if model in curves for each in details
        ]
        together = [LineMark(_curve(every), OTHER, "all models together")]
        legend = [*legend, LegendEntry("all models together", OTHER, shape="line")]
    shown = sorted(curves, key=_missed(results).__getitem__, reverse=True)
    left_out = len(shown) - MAX_PANELS
    note = f"Vertical: fraction of requests; horizontal: latency / SLO. {note} Models with most misses first" + (
        f"; {left_out} more models are in the data." if left_out > 0 else "."
    )
    few, halves = replace(x, label=""), replace(y, label="", ticks=(0.0, 0.5, 1.0))
    height = 160 if len(shown) <= MAX_TALL_CURVES else 100
    plots = []
    for model in shown[:MAX_PANELS]:
        drawn = lines(curves[model], model if alone else "")
        plots.append((model, Plot([rule, *together, *drawn], few, halves, height)))
    return facets(title, plots, legend=legend, note=note, small=True)


def attainment_over_time(results: Sequence[RunResult], colors: Colors) -> Chart | None:
    """Return the chart of attainment over time: a line for each contender; for a single contender also one for each
    model.

    Models with the most misses have colors, the others are gray. None if no run has chart data.
    """
    of_policy = {policy: _details(own) for policy, own in by_policy(results).items()}
    spans = [result.detail.span_s for result in results if result.detail]
    if not spans:
        return None
    lines, legend = [], []
    note = "Fraction answered on time, of the requests that arrived in each 1/40 of the window."
    if len(of_policy) == 1 and not _single(results):
        (details,) = of_policy.values()
        missed = _missed(results)
        worst = sorted(details, key=missed.__getitem__, reverse=True)[:MAX_COLORED]
        lines = [
            LineMark(_over_time(own, spans[0]), OTHER, model, width=1)
            for model, own in details.items()
            if model not in worst
        ]
        if lines:
            note += f" The {len(worst)} models that missed most have colors."
        for model, dash in zip(worst, DASH_PATTERNS, strict=False):
            lines.append(LineMark(_over_time(details[model], spans[0]), colors.of_model(model), model, dash))
            legend.append(LegendEntry(model, colors.of_model(model), dash, "line"))
        if len(details) > len(worst):
            legend.append(LegendEntry("other models", OTHER, shape="line"))
        every = [each for own in details.values() for each in own]
        lines.append(LineMark(_over_time(every, spans[0]), INK, "all models", width=3))
        legend.append(LegendEntry("all models", INK, shape="line"))
    else:
        legend = _contenders(of_policy, colors)
        for policy, details in of_policy.items():
            every = [each for own in details.values() for each in own]
            color, dash = colors.of_contender(policy), colors.dash_of(policy)
            lines.append(LineMark(_over_time(every, spans[0]), color, policy, dash))
    shares = [point[1] for line in lines for point in line.points if point]
    x = PlotAxis.over([], "time in the measured window, s", least=0.0, most=spans[0] * len(lines[0].points))
    plot = Plot(lines, x, PlotAxis.shares(shares, "on time"))
    wide = len(of_policy) > 1 and not _single(results)
    return chart_of("When were requests missed?", plot, legend=legend, note=note, wide=wide)


def batch_sizes(results: Sequence[RunResult]) -> Chart | None:
    """Return histograms of batch sizes, one for each contender, over equal axes. None if nothing ran."""
    shares: dict[str, dict[int, float]] = {}
    for policy, own in by_policy(results).items():
        counts: dict[int, int] = {}
        for result in own:
            for rows, count in result.total.batch_rows.items():
                counts[int(rows)] = counts.get(int(rows), 0) + count
        total = sum(counts.values())
        if total:
            shares[policy] = {size: counts[size] / total for size in sorted(counts)}
    if not shares:
        return None
    largest = max(size for own in shares.values() for size in own)
    most = max(value for own in shares.values() for value in own.values())
    x = PlotAxis.over([largest], "rows of a batch", least=0.0, most=largest + 0.6, whole=True)
    y = PlotAxis.over([100 * most], "fraction of batches", least=0.0, unit=" %")
    plots = []
    for policy, by_size in shares.items():
        bars = [(size - 0.42, size + 0.42, 100 * value) for size, value in by_size.items()]
        says = [f"{size} rows: {share(value)} of the batches" for size, value in by_size.items()]
        plots.append((policy, Plot([ColumnMarks(bars, EXECUTING, says)], x, y, height=130)))
    return facets("How large are the batches?", plots)


def busy_workers(results: Sequence[RunResult]) -> Chart | None:
    """Return the charts of workers' busy fraction, one for each contender. None if unknown.

    Few workers have their names beside them, the busiest first; many are columns.
    """
    plots: list[tuple[str, Plot | str]] = []
    for policy, own in by_policy(results).items():
        if own[0].total.touched_workers is None:
            continue
        totals: dict[str, list[float]] = {}
        for result in own:
            for worker, busy in result.total.busy_shares.items():
                totals.setdefault(worker, []).append(busy)
        means = {worker: sum(values) / len(values) for worker, values in totals.items()}
        if len(means) <= MAX_BARS:
            plots.append((policy, _named_workers(means, f"busy workers {policy}")))
            continue
        bars = [(number + 0.1, number + 0.9, value) for number, value in enumerate(means.values())]
        says = [f"{worker}: {share(value)} busy" for worker, value in means.items()]
        x = PlotAxis(f"{len(means)} workers", 0.0, float(len(means)), (), str)
        y = PlotAxis.shares([], "busy", from_zero=True)
        plots.append((policy, Plot([ColumnMarks(bars, EXECUTING, says)], x, y, height=110)))
    if not plots:
        return None
    several = len({result.total.policy for result in results}) > 1
    of_whom = f" under {plots[0][0]}" if several and len(plots) == 1 else ""
    chart = facets(f"How busy was each worker{of_whom}?", plots)
    return replace(chart, wide=chart.wide or not _single(results))


def _named_workers(busy: Mapping[str, float], label: str) -> str:
    bars = [
        StackedBar(worker, [BarSegment(value, EXECUTING, f"{worker}: {share(value)} busy")], share(value))
        for worker, value in sorted(busy.items(), key=lambda each: -each[1])
    ]
    return stacked_bars(bars, PlotAxis.shares([], "busy", from_zero=True), label)


def _single(results: Sequence[RunResult]) -> bool:
    """Whether there is one model only, so that contenders can share a plot."""
    return len(results[0].rows) == 2


def _bars(
    results: Sequence[RunResult],
    title: str,
    axis: PlotAxis,
    legend: Sequence[LegendEntry],
    bar: Callable[[str, Sequence[ResultRow]], StackedBar | None],
) -> Chart:
    """A bar for each model under each contender: contenders under each other where there is one model only."""
    found = by_policy(results)
    if _single(results):
        bars = [bar(policy, [result.rows[1] for result in own]) for policy, own in found.items()]
        return Chart(title, stacked_bars([each for each in bars if each], axis, title), legend)
    groups, left_out = [], 0
    for policy, own in found.items():
        rows = [[result.rows[number] for result in own] for number in range(1, len(own[0].rows))]
        rows.sort(key=lambda of_model: sum(row.attainment for row in of_model))
        left_out = max(0, len(rows) - MAX_BARS)
        bars = [bar(of_model[0].model, of_model) for of_model in rows[:MAX_BARS]]
        groups.append((policy, stacked_bars([each for each in bars if each], axis, f"{title} {policy}")))
    note = f"The {MAX_BARS} models that missed most; {left_out} more are in the data." if left_out else ""
    return facets(title, groups, legend=legend, note=note)


def _outcomes_of(name: str, rows: Sequence[ResultRow]) -> StackedBar:
    accepted = sum(row.accepted for row in rows)
    counts = {
        "on time": sum(row.answered - row.late for row in rows),
        "late": sum(row.late for row in rows),
        "dropped": sum(sum(row.dropped.values()) for row in rows),
        "failed": sum(row.failed + row.stranded for row in rows),
    }
    of_all = {outcome: count / (accepted or 1) for outcome, count in counts.items()}
    parts = [
        BarSegment(of_all[outcome], OUTCOME_COLORS[outcome], f"{outcome}: {count:,} ({share(of_all[outcome])})")
        for outcome, count in counts.items()
    ]
    return StackedBar(name, parts, f"{share(of_all['on time'])} on time" if accepted else "none came")


def _details(own: Sequence[RunResult]) -> dict[str, list[ModelDetail]]:
    found: dict[str, list[ModelDetail]] = {}
    for result in own:
        for each in result.detail.models if result.detail else ():
            found.setdefault(each.model, []).append(each)
    return found


def _curve(own: Sequence[ModelDetail]) -> list[Point]:
    """(latency / SLO, share of the requests answered within it), all seeds together."""
    accepted = sum(each.accepted for each in own)
    steps = sorted(
        (latency_ms / (each.slo_ms or 1.0), each.answered / len(each.latencies_ms))
        for each in own
        for latency_ms in each.latencies_ms
    )
    curve, answered = [], 0.0
    for ratio, count in steps:
        answered += count
        curve.append((round(ratio, 4), round(answered / accepted, 4)))
    every = max(1, ceil(len(curve) / MAX_POINTS))
    return [*curve[:-1:every], *curve[-1:]]


def _missed(results: Sequence[RunResult]) -> dict[str, float]:
    """The share of its requests that each model missed, summed over all contenders and seeds."""
    missed: dict[str, float] = {}
    for result in results:
        for row in result.rows[1:]:
            missed[row.model] = missed.get(row.model, 0.0) + 1 - row.attainment
    return missed


def _over_time(own: Sequence[ModelDetail], span_s: float) -> list[tuple[float, float] | None]:
    """Return the attainment of the requests that arrived in each span, at its middle; None for a span without any."""
    came = [sum(counts) for counts in zip(*(each.accepted_over_time for each in own), strict=True)]
    kept = [sum(counts) for counts in zip(*(each.on_time_over_time for each in own), strict=True)]
    return [((number + 0.5) * span_s, kept[number] / count) if count else None for number, count in enumerate(came)]


def _contenders(names: Iterable[str], colors: Colors) -> list[LegendEntry]:
    return [LegendEntry(name, colors.of_contender(name), colors.dash_of(name), "line") for name in names]


MAX_MARKS = 4000
"""Maximum number of bars and arrivals on one page, so that it stays small."""
MAX_LANES = 64
MIN_S = 0.02


def gantt_charts(results: Sequence[RunResult], colors: Colors) -> list[Chart]:
    """Return the Gantt chart of each policy's first seed; empty if its stages were not kept."""
    shown: dict[str, RunResult] = {}
    for result in results:
        if result.gantt and result.detail:
            shown.setdefault(result.total.policy, result)
    if not shown:
        return []
    until_ns = min(_until_ns(result, MAX_MARKS // len(shown)) for result in shown.values())
    return [_gantt_chart(result, until_ns, colors) for result in shown.values()]


def _until_ns(result: RunResult, marks: int) -> int:
    """Return when this many bars and arrivals have begun; else when the last of them has ended."""
    assert result.detail is not None
    starts_ns = [round(bar.start_s * NS_PER_S) for bar in result.gantt]
    begun = sorted([*starts_ns, *(each.at_ns for each in result.detail.arrivals)])
    if len(begun) > marks:
        return max(begun[marks], round(MIN_S * NS_PER_S))
    return round(max(bar.end_s for bar in result.gantt) * NS_PER_S)


def _gantt_chart(result: RunResult, until_ns: int, colors: Colors) -> Chart:
    assert result.detail is not None
    arrivals = [each for each in result.detail.arrivals if each.at_ns < until_ns]
    models = sorted(
        {each.model for each in arrivals} | {bar.model for bar in result.gantt},
        key=[row.model for row in result.rows].index,
    )
    strips = [
        GanttStrip("arrivals", _instants_by_model(models, colors, [(each.model, each.at_ns) for each in arrivals])),
        GanttStrip(
            "deadlines",
            _instants_by_model(
                models, colors, [(each.model, each.due_ns) for each in arrivals if each.due_ns is not None]
            ),
        ),
        GanttStrip("missed", _missed_instants(arrivals)),
    ]
    workers = result.detail.workers
    lanes = [GanttLane(worker, _spans(result, worker, until_ns, colors)) for worker in workers[:MAX_LANES]]
    legend = [LegendEntry(model, colors.of_model(model)) for model in models]
    legend += [LegendEntry(outcome, color) for outcome, color in OUTCOME_COLORS.items() if outcome != ON_TIME]
    title = f"What ran where at the start of the window under {result.total.policy}, seed {result.total.seed}?"
    left = len(workers) - MAX_LANES
    note = (
        "Gray: idle. Missed requests are marked when they were dropped, late or failed ones when they arrived. "
        "Buttons, + and -, or Ctrl and the wheel zoom all these charts at once; drag to move."
    ) + (f" {plural(left, 'more worker')} not shown." if left > 0 else "")
    return Chart(title, gantt(title, strips, lanes, until_ns), legend, note, wide=True)


def _instants_by_model(
    models: Sequence[str], colors: Colors, instants: Sequence[tuple[str, int]]
) -> list[tuple[str, list[int]]]:
    return [
        (colors.of_model(model), own)
        for model in models
        if (own := [at_ns for name, at_ns in instants if name == model])
    ]


def _missed_instants(arrivals: Sequence[ArrivalMark]) -> list[tuple[str, list[int]]]:
    """Instants by outcome: when what was given up was given up, when what came late had arrived."""
    return [
        (OUTCOME_COLORS[outcome], own)
        for outcome in OUTCOME_COLORS
        if outcome != ON_TIME
        and (
            own := [
                max(each.at_ns, each.ended_ns) if outcome == DROPPED else each.at_ns
                for each in arrivals
                if each.outcome == outcome
            ]
        )
    ]


def _spans(result: RunResult, worker: str, until_ns: int, colors: Colors) -> list[GanttSpan]:
    spans = []
    for bar in result.gantt:
        start_ns, end_ns = (round(instant_s * NS_PER_S) for instant_s in (bar.start_s, bar.end_s))
        if bar.worker == worker and start_ns < until_ns:
            start_ns, end_ns = max(0, start_ns), min(until_ns, end_ns)
            says = f"{bar.model}: {plural(bar.rows, 'row')}, {1000 * bar.start_s:.1f} to {1000 * bar.end_s:.1f} ms"
            spans.append(GanttSpan(start_ns, end_ns, colors.of_model(bar.model), says))
    return spans


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
    marks: list[LineMark | PointMarks | RuleMark] = [
        RuleMark(1 - limit, f"{number_format.limit(1 - limit)} on time", is_right=True)
    ]
    rows = {
        name: row
        for row, name in enumerate(each.name for each in sorted(curves, key=lambda each: each.found_rps or 0.0))
    }
    for curve in curves:
        color = colors.of_contender(curve.name)
        if curve.found_rps:
            row = rows[curve.name] % MAX_LABEL_ROWS
            marks.append(RuleMark(curve.found_rps, rate(curve.found_rps), down=True, color=color, row=row))
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
