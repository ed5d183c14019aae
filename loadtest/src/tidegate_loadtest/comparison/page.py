"""A comparison as one HTML page that needs no network."""

from html import escape

import numpy as np

from tidegate.sim import charts
from tidegate.sim.charts import COLOURS, Chart, axis, chart
from tidegate.sim.report import html_table, page
from tidegate_loadtest.comparison.findings import ATTAINMENT, FIGURES, GOODPUT, Figure, contrast_of, verdicts, warnings
from tidegate_loadtest.comparison.intervals import CONFIDENCE
from tidegate_loadtest.comparison.runs import Comparison
from tidegate_loadtest.comparison.table import difference_cell, figure_cells

CURVE_POINTS = 200
"""The quantiles of a target's latency curve."""


def comparison_page(title: str, comparison: Comparison) -> str:
    """Verdicts, figures and differences as tables; rounds, differences, latencies and batches as charts."""
    rounds = len(comparison.complete)
    parts = [f"<p><strong>{escape(verdict)}</strong></p>" for verdict in verdicts(comparison)]
    parts += [f'<p style="color:#b02020">{escape(warning)}</p>' for warning in warnings(comparison)]
    if not rounds:
        return page(title, [], "".join(parts))
    base, *others = comparison.targets
    headings = [figure.heading for figure in FIGURES]
    parts.append(_table([*headings, "late p99 ms"], figure_cells(comparison)))
    if rounds > 1:
        parts.append(
            f"<p>Means of {rounds} rounds ± half of the {CONFIDENCE:.0%} confidence interval (Student's t). "
            "<em>late</em>: how late the load generator was, in the worst round.</p>"
        )
    parts.append(f"<h2>Against {escape(base.name)}, in the same rounds</h2>")
    cells = [
        [target.name, *(difference_cell(comparison, target, base, figure) for figure in FIGURES)] for target in others
    ]
    parts.append(_table(headings, cells))
    sections = [
        ("Goodput of each round", _rounds(comparison, GOODPUT)),
        ("Attainment of each round", _rounds(comparison, ATTAINMENT)),
        (f"Goodput against {base.name}: mean and {CONFIDENCE:.0%} confidence interval", _against(comparison)),
        ("Latency: share of the requests that were answered within so long", _latencies(comparison)),
        (
            "Batch sizes",
            charts.batch_sizes([live.result for target in comparison.targets for live in comparison.of(target)]),
        ),
    ]
    return page(title, sections, "\n".join(parts))


def _table(headings: list[str], lines: list[list[str]]) -> str:
    """Cells break before an interval in parentheses, and nowhere else."""
    kept = [[name, *(cell.replace(" ", "\u00a0").replace("\u00a0(", " (") for cell in cells)] for name, *cells in lines]
    return f'<div style="overflow-x: auto">{html_table(["", *headings], kept)}</div>'


def _rounds(comparison: Comparison, figure: Figure) -> Chart:
    """A line for each target over the rounds."""
    numbers = [comparison.seeds.index(seed) + 1 for seed in comparison.complete]
    data: list[Chart] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": target.name,
            "x": numbers,
            "y": [figure.value(live.result.total) for live in comparison.of(target)],
        }
        for target in comparison.targets
    ]
    form = {"tickformat": ".0%"} if figure is ATTAINMENT else {}
    return chart(data, xaxis=axis("round", dtick=1), yaxis=axis(figure.heading, rangemode="tozero", **form))


def _against(comparison: Comparison) -> Chart:
    """A dot with whiskers for each target but the first, by ratio where there is one in all."""
    base, *others = comparison.targets
    found = [contrast for target in others if (contrast := contrast_of(comparison, target, base, GOODPUT))]
    by_ratio = all(contrast.ratio for contrast in found)
    names, means, above, below = [], [], [], []
    for contrast in found:
        interval = contrast.ratio if by_ratio and contrast.ratio else contrast.difference
        ends = [interval.mean if end is None else end for end in (interval.low, interval.high)]
        names.append(contrast.target.name)
        means.append(interval.mean - 1 if by_ratio else interval.mean)
        below.append(interval.mean - ends[0])
        above.append(ends[1] - interval.mean)
    dots: Chart = {
        "type": "scatter",
        "mode": "markers",
        "x": means,
        "y": names,
        "error_x": {"type": "data", "symmetric": False, "array": above, "arrayminus": below},
        "marker": {"size": 10, "color": COLOURS[0]},
    }
    none = {"type": "line", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "line": {"dash": "dot"}}
    form = {"tickformat": "+.0%"} if by_ratio else {}
    return chart(
        [dots],
        height=160 + 40 * len(names),
        shapes=[none],
        xaxis=axis(f"goodput against {base.name}" + ("" if by_ratio else ", requests/s"), **form),
        yaxis={"automargin": True, "autorange": "reversed"},
    )


def _latencies(comparison: Comparison) -> Chart:
    """How many requests of each target were answered within x, all rounds together; lines at the SLOs."""
    data: list[Chart] = []
    for target in comparison.targets:
        runs = [live.seen.run for live in comparison.of(target)]
        answered_ms = np.concatenate([run.latency_ns[run.ok] for run in runs]) / 1e6
        if not len(answered_ms):
            continue
        share = len(answered_ms) / sum(len(run.ok) for run in runs)
        quantiles = np.linspace(0, 1, CURVE_POINTS)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": target.name,
                "x": np.quantile(answered_ms, quantiles).round(3).tolist(),
                "y": (quantiles * share).round(4).tolist(),
            }
        )
    slos_ms = {model.slo_ms for model in comparison.scenario.models if model.slo_ms is not None}
    lines = [
        {"type": "line", "yref": "paper", "x0": slo_ms, "x1": slo_ms, "y0": 0, "y1": 1, "line": {"dash": "dot"}}
        for slo_ms in sorted(slos_ms)
    ]
    return chart(
        data,
        shapes=lines,
        xaxis=axis("ms (dotted: the SLO)", rangemode="tozero"),
        yaxis=axis("share of the requests", range=[0, 1.02], tickformat=".0%"),
    )
