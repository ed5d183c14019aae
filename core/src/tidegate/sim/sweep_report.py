"""HTML page of a sweep: curves over the first changed field, one for each combination of the others."""

from collections.abc import Callable, Sequence
from statistics import median

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
from tidegate.sim.document import Document, rows_csv
from tidegate.sim.goodput import MAX_MISS_RATE
from tidegate.sim.result import ResultRow, RunResult
from tidegate.sim.run import RunSpec
from tidegate.sim.tables import columns_of, downloads
from tidegate.sim.verdicts import sweep_verdicts


def sweep_page(
    title: str, runs: Sequence[RunSpec], results: Sequence[RunResult], document: Document, origin: PageOrigin
) -> str:
    """Return the page of `tidegate sweep`: curves over the first changed field.

    There is a curve for each combination of the other fields. `document`: results as JSON, for download.
    """
    field = next(iter(runs[0].changes))
    names = _names(runs)
    colors = Colors((), names)
    shown: list[tuple[str, Callable[[ResultRow], float | None], str]] = [
        (f"How does the worst model's attainment change with {field}?", lambda row: 1 - row.worst_bad_rate, "%"),
        (f"How does goodput change with {field}?", lambda row: row.goodput_rps, "requests/s in time"),
        (f"How does the 99th percentile of latency change with {field}?", lambda row: row.p99_ms, "ms"),
        (f"How does the workers' busy share change with {field}?", lambda row: row.busy_share, "%"),
        (
            f"How does the number of workers that are used change with {field}?",
            lambda row: row.touched_workers,
            "workers",
        ),
    ]
    parts: list[Chart | PageSection] = [
        _curves(heading, runs, results, figure, unit, colors) for heading, figure, unit in shown
    ]
    columns = columns_of(results)
    head = [*runs[0].changes, *columns]
    lines = [
        [*map(str, run.changes.values()), *(show(result.total) for show in columns.values())]
        for run, result in zip(runs, results, strict=True)
    ]
    parts.append(PageSection("The figures", table(head, lines)))
    bad: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for name, run, result in zip(names, runs, results, strict=True):
        rates = bad[name].setdefault(str(run.changes[field]), [])
        rates.append(result.total.worst_bad_rate)
    facts = {
        "Changed": "; ".join(f"{name} = {', '.join(values)}" for name, values in _values(runs).items()),
        "Seeds": ", ".join(dict.fromkeys(str(run.seed) for run in runs)),
    }
    return Page(
        title,
        sweep_verdicts(field, bad, MAX_MISS_RATE),
        origin,
        facts,
        document["scenario"],
        parts,
        downloads=downloads(document, _csv(runs, results)),
    ).html()


def _csv(runs: Sequence[RunSpec], results: Sequence[RunResult]) -> str:
    pairs = [(run.changes, row) for run, result in zip(runs, results, strict=True) for row in result.rows]
    return rows_csv([row for _, row in pairs], [changes for changes, _ in pairs])


def _values(runs: Sequence[RunSpec]) -> dict[str, list[str]]:
    return {name: list(dict.fromkeys(str(run.changes[name]) for run in runs)) for name in runs[0].changes}


def _names(runs: Sequence[RunSpec]) -> list[str]:
    """Return the label of each run: its policy, and the fields that differ."""
    _field, *others = runs[0].changes
    telling = [name for name in others if len(_values(runs)[name]) > 1]
    return [
        " ".join([run.policy.title, ", ".join(f"{name}={run.changes[name]}" for name in telling)]).strip()
        for run in runs
    ]


def _curves(
    title: str,
    runs: Sequence[RunSpec],
    results: Sequence[RunResult],
    figure: Callable[[ResultRow], float | None],
    unit: str,
    colors: Colors,
) -> Chart:
    """A figure over the first field that was changed: a dot for each seed, a line through the medians."""
    field = next(iter(runs[0].changes))
    values = list(dict.fromkeys(str(run.changes[field]) for run in runs))
    by_size = all(isinstance(run.changes[field], int | float) for run in runs)
    lines: dict[str, dict[float, list[tuple[float, str]]]] = {}
    for name, run, result in zip(_names(runs), runs, results, strict=True):
        value = figure(result.total)
        at = float(run.changes[field]) if by_size else float(values.index(str(run.changes[field])))
        points = lines.setdefault(name, {}).setdefault(at, [])
        if value is not None:
            points.append((value, f"{name}, {field}={run.changes[field]}, seed {run.seed}: {value:,.4g}"))
    known = [value for points in lines.values() for own in points.values() for value, _ in own]
    if by_size:
        x = PlotAxis.over([at for points in lines.values() for at in points], field)
    else:
        ticks = tuple(float(number) for number in range(len(values)))
        x = PlotAxis(field, -0.5, len(values) - 0.5, ticks, lambda at: values[round(at)])
    y = PlotAxis.shares(known, "share") if unit == "%" else PlotAxis.over(known, unit, least=0.0)
    marks: list[LineMark | PointMarks | RuleMark] = (
        [RuleMark(1 - MAX_MISS_RATE, number_format.limit(1 - MAX_MISS_RATE))] if "attainment" in title else []
    )
    for name, by_value in lines.items():
        color = colors.of_contender(name)
        middle = [(at, median([value for value, _ in own])) for at, own in sorted(by_value.items()) if own]
        marks.append(LineMark(middle, color, name, colors.dash_of(name)))
        dots = [(at, value) for at, own in by_value.items() for value, _ in own]
        marks.append(PointMarks(dots, color, [said for own in by_value.values() for _, said in own], 3.5))
    legend = [LegendEntry(name, colors.of_contender(name), colors.dash_of(name), "line") for name in lines]
    return chart_of(title, Plot(marks, x, y), legend=legend if len(lines) > 1 else ())
