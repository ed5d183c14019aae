"""HTML page of a sweep: curves over the changed field, or heat maps where two fields vary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tidegate.report import (
    Chart,
    Colors,
    HeatCell,
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
    facets,
    heat_map,
    number_format,
    table,
)
from tidegate.sim.document import Document, rows_csv
from tidegate.sim.goodput import MAX_MISS_RATE
from tidegate.sim.result import ResultRow, RunResult
from tidegate.sim.run import RunSpec
from tidegate.sim.tables import columns_of, downloads
from tidegate.sim.verdicts import sweep_verdicts


@dataclass(frozen=True)
class SweepFigure:
    """A figure that the page shows over the changed fields."""

    question: str
    """Title up to the field."""
    value: Callable[[ResultRow], float | None]
    unit: str
    """`%` for fractions."""
    better: float = 1.0
    """1: more is better; -1: less is."""
    limit: float | None = None
    """Value that has to be reached."""


SWEEP_FIGURES = (
    SweepFigure(
        "How does the worst model's attainment change with",
        lambda row: 1 - row.worst_bad_rate,
        "%",
        limit=1 - MAX_MISS_RATE,
    ),
    SweepFigure("How does goodput change with", lambda row: row.goodput_rps, "requests/s on time"),
    SweepFigure("How does the 99th percentile of latency change with", lambda row: row.p99_ms, "ms", better=-1.0),
    SweepFigure("How does the workers' busy fraction change with", lambda row: row.busy_share, "%", better=-1.0),
    SweepFigure(
        "How does the number of workers that are used change with",
        lambda row: row.touched_workers,
        "workers",
        better=-1.0,
    ),
)


def sweep_page(
    title: str, runs: Sequence[RunSpec], results: Sequence[RunResult], document: Document, origin: PageOrigin
) -> str:
    """Return the page of `tidegate sweep`: curves over the changed field, or heat maps of the first two that vary.

    There is a heat map for each combination of the other fields. `document`: results as JSON, for download.
    """
    varying = [name for name, values in _values(runs).items() if len(values) > 1]
    field = varying[0] if varying else next(iter(runs[0].changes))
    names = _names(runs, [field])
    colors = Colors((), names)
    parts: list[Chart | PageSection] = [
        _heat_maps(figure, runs, results, varying[0], varying[1])
        if len(varying) > 1
        else _curves(figure, field, runs, results, colors)
        for figure in SWEEP_FIGURES
        if len(varying) < 2 or figure.limit is not None or len({figure.value(result.total) for result in results}) > 1
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


def _names(runs: Sequence[RunSpec], shown: Sequence[str]) -> list[str]:
    """Return the label of each run: its policy, and the fields that differ and are not shown otherwise."""
    telling = [name for name, values in _values(runs).items() if name not in shown and len(values) > 1]
    return [
        " ".join([run.policy.title, ", ".join(f"{name}={run.changes[name]}" for name in telling)]).strip()
        for run in runs
    ]


def _heat_maps(
    figure: SweepFigure, runs: Sequence[RunSpec], results: Sequence[RunResult], across: str, down: str
) -> Chart:
    """A heat map for each policy and combination of further fields: medians of the seeds, on one scale of colors."""
    known: dict[str, dict[tuple[str, str], list[float]]] = {}
    for name, run, result in zip(_names(runs, [across, down]), runs, results, strict=True):
        cell = known.setdefault(name, {}).setdefault((str(run.changes[down]), str(run.changes[across])), [])
        value = figure.value(result.total)
        if value is not None:
            cell.append(value)
    medians = {
        name: {at: median(values) for at, values in of_name.items() if values} for name, of_name in known.items()
    }
    every = [value for of_name in medians.values() for value in of_name.values()] or [0.0]
    least, most = min(every), max(every)
    columns, rows = _values(runs)[across], _values(runs)[down]

    def cell_of(name: str, row: str, column: str) -> HeatCell | None:
        value = medians[name].get((row, column))
        if value is None:
            return None
        shown = number_format.share(value).removesuffix(" %") if figure.unit == "%" else number_format.rate(value)
        says = f"{name}, {across}={column}, {down}={row}: {shown} {figure.unit}"
        kept = figure.limit is not None and value >= figure.limit
        if most == least:
            return HeatCell(shown, 1.0 if kept else 0.5, says, kept)
        at = (value - least) / (most - least)
        return HeatCell(shown, at if figure.better > 0 else 1 - at, says, kept)

    title = f"{figure.question} {across} and {down}?"
    maps = [
        (
            name,
            heat_map(
                across,
                columns,
                down,
                rows,
                [[cell_of(name, row, column) for column in columns] for row in rows],
                f"{title} {name}",
            ),
        )
        for name in medians
    ]
    unit = f"In {figure.unit}. "
    seeds = "Medians of the seeds. " if len({run.seed for run in runs}) > 1 else ""
    kept = f"Framed: at least {number_format.limit(figure.limit)}." if figure.limit is not None else ""
    return facets(title, maps, note=f"{unit}{seeds}{kept}".strip())


def _curves(
    figure: SweepFigure, field: str, runs: Sequence[RunSpec], results: Sequence[RunResult], colors: Colors
) -> Chart:
    """A figure over the field that was changed: a dot for each seed, a line through the medians."""
    values = list(dict.fromkeys(str(run.changes[field]) for run in runs))
    by_size = all(isinstance(run.changes[field], int | float) for run in runs)
    lines: dict[str, dict[float, list[tuple[float, str]]]] = {}
    for name, run, result in zip(_names(runs, [field]), runs, results, strict=True):
        value = figure.value(result.total)
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
    is_share = figure.unit == "%"
    y = PlotAxis.shares(known, "share") if is_share else PlotAxis.over(known, figure.unit, least=0.0)
    marks: list[LineMark | PointMarks | RuleMark] = (
        [] if figure.limit is None else [RuleMark(figure.limit, number_format.limit(figure.limit))]
    )
    for name, by_value in lines.items():
        color = colors.of_contender(name)
        middle = [(at, median([value for value, _ in own])) for at, own in sorted(by_value.items()) if own]
        marks.append(LineMark(middle, color, name, colors.dash_of(name)))
        dots = [(at, value) for at, own in by_value.items() for value, _ in own]
        marks.append(PointMarks(dots, color, [text for own in by_value.values() for _, text in own], 3.5))
    legend = [LegendEntry(name, colors.of_contender(name), colors.dash_of(name), "line") for name in lines]
    return chart_of(f"{figure.question} {field}?", Plot(marks, x, y), legend=legend if len(lines) > 1 else ())
