"""Gantt charts of the first moments of the window: one for each policy, over the same time span."""

from collections.abc import Sequence

from tidegate.report import Chart, Colors, GanttLane, GanttSpan, GanttStrip, LegendEntry, gantt
from tidegate.report.colors import OUTCOME_COLORS
from tidegate.report.number_format import plural
from tidegate.sim.chart_data import DROPPED, ON_TIME, ArrivalMark
from tidegate.sim.result import RunResult
from tidegate.workload.arrivals import NS_PER_S

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
    return [_chart(result, until_ns, colors) for result in shown.values()]


def _until_ns(result: RunResult, marks: int) -> int:
    """Return when this many bars and arrivals have begun; else when the last of them has ended."""
    assert result.detail is not None
    starts_ns = [round(bar.start_s * NS_PER_S) for bar in result.gantt]
    begun = sorted([*starts_ns, *(each.at_ns for each in result.detail.arrivals)])
    if len(begun) > marks:
        return max(begun[marks], round(MIN_S * NS_PER_S))
    return round(max(bar.end_s for bar in result.gantt) * NS_PER_S)


def _chart(result: RunResult, until_ns: int, colors: Colors) -> Chart:
    assert result.detail is not None
    arrivals = [each for each in result.detail.arrivals if each.at_ns < until_ns]
    models = sorted(
        {each.model for each in arrivals} | {bar.model for bar in result.gantt},
        key=[row.model for row in result.rows].index,
    )
    strips = [
        GanttStrip("arrivals", _by_model(models, colors, [(each.model, each.at_ns) for each in arrivals])),
        GanttStrip(
            "deadlines",
            _by_model(models, colors, [(each.model, each.due_ns) for each in arrivals if each.due_ns is not None]),
        ),
        GanttStrip("missed", _missed(arrivals)),
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


def _by_model(
    models: Sequence[str], colors: Colors, instants: Sequence[tuple[str, int]]
) -> list[tuple[str, list[int]]]:
    return [
        (colors.of_model(model), own)
        for model in models
        if (own := [at_ns for name, at_ns in instants if name == model])
    ]


def _missed(arrivals: Sequence[ArrivalMark]) -> list[tuple[str, list[int]]]:
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
