"""The charts of the reports, as Plotly draws them: plain dictionaries of `data` and `layout`."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from tidegate.sim.goodput import Goodput
from tidegate.sim.result import Row, RunResult
from tidegate.sim.run import Run

Chart = dict[str, Any]
COLOURS = ("#1b6ca8", "#e07b39", "#3a9278", "#b0436b", "#7a6fb8", "#8a7a3d", "#4aa3c7", "#a65e4e", "#5f8f3f", "#777777")
MOST_BARS = 4000
"""The most bars of a Gantt chart: more make a browser slow, and cannot be told apart."""


def goodput_bars(results: Sequence[RunResult]) -> Chart:
    """Goodput and attainment by policy: the median over the seeds, whiskers from the least to the most."""
    by_policy = _by_policy(results)
    attainment = _spread_bar(by_policy, lambda row: row.attainment, "attainment", COLOURS[1])
    return chart(
        [
            {**_spread_bar(by_policy, lambda row: row.goodput_rps, "goodput", COLOURS[0]), "offsetgroup": "goodput"},
            {**attainment, "yaxis": "y2", "offsetgroup": "attainment"},
        ],
        barmode="group",
        yaxis=axis("requests/s in time", rangemode="tozero"),
        yaxis2=axis("share in time", overlaying="y", side="right", range=[0, 1.02], tickformat=".0%", showgrid=False),
    )


def latency_bars(results: Sequence[RunResult]) -> Chart:
    """Percentiles by policy: the median over the seeds."""
    by_policy = _by_policy(results)
    shown: list[tuple[str, Callable[[Row], float | None]]] = [
        ("p50", lambda row: row.p50_ms),
        ("p95", lambda row: row.p95_ms),
        ("p99", lambda row: row.p99_ms),
    ]
    data = [_spread_bar(by_policy, figure, name, COLOURS[number]) for number, (name, figure) in enumerate(shown)]
    return chart(data, barmode="group", yaxis=axis("ms", rangemode="tozero"))


def bad_rate_by_model(results: Sequence[RunResult]) -> Chart:
    """Bad rate of every model, by policy: the median over the seeds."""
    data = []
    for policy, own in _by_policy(results).items():
        by_model: dict[str, list[float]] = {}
        for result in own:
            for row in result.rows[1:]:
                by_model.setdefault(row.model, []).append(row.bad_rate)
        values = [median(rates) for rates in by_model.values()]
        data.append({"type": "bar", "name": policy, "x": list(by_model), "y": values})
    return chart(data, barmode="group", yaxis=axis("share", rangemode="tozero", tickformat=".1%"))


def batch_sizes(results: Sequence[RunResult]) -> Chart:
    """How many batches had so many rows, by policy, all seeds together."""
    data = []
    for policy, own in _by_policy(results).items():
        counts: dict[int, int] = {}
        for result in own:
            for rows, count in result.total.batch_rows.items():
                counts[int(rows)] = counts.get(int(rows), 0) + count
        total = sum(counts.values())
        sizes = sorted(counts)
        shares = [counts[size] / total for size in sizes]
        data.append({"type": "scatter", "mode": "lines+markers", "name": policy, "x": sizes, "y": shares})
    return chart(data, xaxis=axis("rows"), yaxis=axis("share of the batches", rangemode="tozero", tickformat=".0%"))


def busy_shares(results: Sequence[RunResult]) -> Chart:
    """Busy share of every worker, by policy: the first seed."""
    data = [
        {
            "type": "bar",
            "name": policy,
            "x": list(own[0].total.busy_shares),
            "y": list(own[0].total.busy_shares.values()),
        }
        for policy, own in _by_policy(results).items()
    ]
    return chart(data, barmode="group", yaxis=axis("share", range=[0, 1.02], tickformat=".0%"))


def gantt(result: RunResult) -> Chart:
    """What ran where in the first moments of the window: one bar for each leg."""
    bars = result.gantt[:MOST_BARS]
    workers = sorted({bar.worker for bar in bars}, key=list(result.total.busy_shares).index)
    data = []
    for number, model in enumerate(sorted({bar.model for bar in bars})):
        own = [bar for bar in bars if bar.model == model]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": model,
                "base": [bar.start_s for bar in own],
                "x": [bar.end_s - bar.start_s for bar in own],
                "y": [bar.worker for bar in own],
                "text": [str(bar.rows) for bar in own],
                "textposition": "inside",
                "hovertemplate": "%{y}: %{text} rows, from %{base:.4f} s<extra>"
                + model.replace("<", "&lt;")
                + "</extra>",
                "marker": {"color": COLOURS[number % len(COLOURS)], "line": {"color": "white", "width": 1}},
            }
        )
    return chart(
        data,
        barmode="overlay",
        height=160 + 24 * len(workers),
        xaxis=axis("s", range=[0, min(0.25, max((bar.end_s for bar in bars), default=1.0))]),
        yaxis={"categoryorder": "array", "categoryarray": workers[::-1], "automargin": True},
    )


def goodput_found(goodputs: Sequence[Goodput]) -> Chart:
    """The goodput of each policy."""
    values = [goodput.median_rps for goodput in goodputs]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [goodput.max_rps - goodput.median_rps for goodput in goodputs],
        "arrayminus": [goodput.median_rps - goodput.min_rps for goodput in goodputs],
    }
    bar = {
        "type": "bar",
        "x": [goodput.policy for goodput in goodputs],
        "y": values,
        "error_y": error,
        "text": [f"{value:,.0f}" for value in values],
        "marker": {"color": COLOURS[0]},
    }
    return chart([bar], yaxis=axis("requests/s", rangemode="tozero"))


def probes(goodputs: Sequence[Goodput], limit: float) -> Chart:
    """Every rate that was tried to its end, by policy."""
    data: list[Chart] = []
    for goodput in goodputs:
        tried = sorted(
            (probe.rate_rps, probe.worst_bad_rate)
            for search in goodput.searches
            for probe in search.probes
            if probe.worst_bad_rate is not None
        )
        x, y = [rate for rate, _ in tried], [bad for _, bad in tried]
        data.append({"type": "scatter", "mode": "markers", "name": goodput.policy, "x": x, "y": y})
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit, "line": {"dash": "dot"}}
    return chart(
        data,
        shapes=[line],
        xaxis=axis("requests/s"),
        yaxis=axis("bad rate of the worst model", tickformat=".1%", rangemode="tozero"),
    )


def curves(runs: Sequence[Run], results: Sequence[RunResult], figure: str, unit: str) -> Chart:
    """A figure over the first field that was changed: the median over the seeds."""
    first = next(iter(runs[0].changes))
    lines: dict[str, dict[Any, list[float]]] = {}
    for run, result in zip(runs, results, strict=True):
        others = ", ".join(f"{field}={value}" for field, value in run.changes.items() if field != first)
        line = lines.setdefault(f"{run.policy.title} {others}".strip(), {})
        x = run.changes[first]
        value = getattr(result.total, figure)
        line.setdefault(x if isinstance(x, int | float | str) else str(x), []).extend([] if value is None else [value])
    data = []
    for name, points in lines.items():
        y = [median(values) if values else None for values in points.values()]
        data.append({"type": "scatter", "mode": "lines+markers", "name": name, "x": list(points), "y": y})
    return chart(data, xaxis=axis(first), yaxis=axis(unit, rangemode="tozero"))


def _by_policy(results: Iterable[RunResult]) -> dict[str, list[RunResult]]:
    grouped: dict[str, list[RunResult]] = {}
    for result in results:
        grouped.setdefault(result.total.policy, []).append(result)
    return grouped


def _spread_bar(
    by_policy: dict[str, list[RunResult]], figure: Callable[[Row], float | None], name: str, colour: str
) -> Chart:
    policies, middle, above, below = [], [], [], []
    for policy, own in by_policy.items():
        values = [value for result in own if (value := figure(result.total)) is not None]
        if values:
            policies.append(policy)
            middle.append(median(values))
            above.append(max(values) - middle[-1])
            below.append(middle[-1] - min(values))
    error = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "visible": any(above + below)}
    return {"type": "bar", "name": name, "x": policies, "y": middle, "error_y": error, "marker": {"color": colour}}


def axis(title: str, **options: object) -> Chart:
    """An axis with a title."""
    return {"title": {"text": title}, **options}


def chart(data: list[Chart], **layout: object) -> Chart:
    """What is to be drawn, in the look of all charts; `layout` adds to it."""
    return {
        "data": data,
        "layout": {
            "template": "plotly_white",
            "colorway": list(COLOURS),
            "margin": {"t": 20, "r": 60},
            "legend": {"orientation": "h", "y": -0.25},
            **layout,
        },
    }
