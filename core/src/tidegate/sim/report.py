"""The report: one HTML page that needs no network, with the charts of a simulation, a search or a sweep."""

from collections.abc import Sequence
from html import escape
from typing import Any

from tidegate.sim import charts
from tidegate.sim.charts import Chart
from tidegate.sim.goodput import Goodput
from tidegate.sim.result import RunResult
from tidegate.sim.run import Run

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1100px; color: #222; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2.5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .8rem; text-align: right }
td:first-child, th:first-child { text-align: left } tr + tr td { border-top: 1px solid #ddd }
"""
MOST_ADVICE = 50
"""Lines of a table of advice: a policy may advise at every event."""


def simulate_page(title: str, results: Sequence[RunResult]) -> str:
    """The page of `tidegate simulate`: goodput, attainment, latency, batches; workers, advice; by policy."""
    sections: list[tuple[str, Chart]] = [
        ("Goodput and attainment", charts.goodput_bars(results)),
        ("Latency of the answered", charts.latency_bars(results)),
    ]
    if len(results[0].rows) > 2:
        sections.append(("Bad rate of each model", charts.bad_rate_by_model(results)))
    sections += [
        ("Batch sizes", charts.batch_sizes(results)),
        ("Busy share of the workers", charts.busy_shares(results)),
    ]
    shown: set[str] = set()
    for result in results:
        if result.gantt and result.total.policy not in shown:
            shown.add(result.total.policy)
            heading = f"Workers at the start of the window: {result.total.policy}, seed {result.total.seed}"
            sections.append((heading, charts.gantt(result)))
    return page(title, sections, _table(results) + "".join(map(_advice, results)) + "".join(map(_changes, results)))


def goodput_page(title: str, goodputs: Sequence[Goodput], limit: float) -> str:
    """The page of `tidegate goodput`: what was found, with its spread, and the rates that were tried."""
    best = [search.best for goodput in goodputs for search in goodput.searches if search.best]
    sections = [
        (f"Goodput at a bad rate of at most {limit:g}: median, least and most", charts.goodput_found(goodputs)),
        ("Bad rate over the rate", charts.probes(goodputs, limit)),
    ]
    if best:
        sections += [("Latency at the goodput", charts.latency_bars(best)), ("Batch sizes", charts.batch_sizes(best))]
    return page(title, sections, _table(best))


def sweep_page(title: str, runs: Sequence[Run], results: Sequence[RunResult]) -> str:
    """The page of `tidegate sweep`: curves over the first changed field, one for each combination of the others."""
    field = next(iter(runs[0].changes))
    sections = [
        (f"{heading} over {field}", charts.curves(runs, results, figure, axis))
        for heading, figure, axis in (
            ("Goodput", "goodput_rps", "requests/s in time"),
            ("Bad rate of the worst model", "worst_bad_rate", "share"),
            ("99th percentile of the latency", "p99_ms", "ms"),
            ("Busy share of the workers", "busy_share", "share of the time"),
            ("Workers used", "touched_workers", "workers"),
        )
    ]
    return page(title, sections, "")


def page(title: str, sections: Sequence[tuple[str, Chart]], table: str) -> str:
    """A title, a table (HTML) and charts under their headings, as one page."""
    import plotly.io  # noqa: PLC0415 - of the extra `sim`

    body = []
    for number, (heading, chart) in enumerate(sections):
        figure = plotly.io.to_html(
            chart, full_html=False, include_plotlyjs=number == 0, div_id=f"chart{number}", config={"displaylogo": False}
        )
        body.append(f"<h2>{escape(heading)}</h2>\n{figure}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{table}\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(results: Sequence[RunResult]) -> str:
    columns: dict[str, Any] = {
        "policy": lambda row: row.policy,
        "seed": lambda row: row.seed,
        "requests": lambda row: f"{row.accepted:,}",
        "goodput /s": lambda row: f"{row.goodput_rps:,.0f}",
        "bad": lambda row: f"{row.bad_rate:.2%}",
        "of the worst model": lambda row: f"{row.worst_bad_rate:.2%}",
        "late": lambda row: f"{row.late:,}",
        "dropped": lambda row: ", ".join(f"{count:,} ({reason})" for reason, count in row.dropped.items()) or "0",
        "failed": lambda row: f"{row.failed:,}",
        "median batch": lambda row: row.median_batch_rows,
        "workers used": lambda row: row.touched_workers,
        "busy": lambda row: f"{row.busy_share:.1%}",
    }
    if any(result.total.lateness_p99_ms is not None for result in results):
        columns["generator late p50, p99 ms"] = lambda row: f"{row.lateness_p50_ms:.2f}, {row.lateness_p99_ms:.2f}"
    return html_table(list(columns), [[show(result.total) for show in columns.values()] for result in results])


def _advice(result: RunResult) -> str:
    """What a policy advised on the number of its workers; nothing where it never did."""
    if not result.advice:
        return ""
    heading = f"Advice on the number of workers: {result.total.policy}, seed {result.total.seed}"
    lines = [[f"{said.at_s:.3f}", f"{said.workers:+d}", said.reason] for said in result.advice[:MOST_ADVICE]]
    left = len(result.advice) - len(lines)
    if left:
        lines.append(["...", "", f"and {left:,} more"])
    return f"<h2>{escape(heading)}</h2>\n" + html_table(["at s", "workers", "reason"], lines)


def _changes(result: RunResult) -> str:
    """What became of the changes of the layout; nothing where there was none."""
    if not result.changes:
        return ""
    heading = f"Changes of the layout: {result.total.policy}, seed {result.total.seed}"
    head = ["at s", "change", "state", "starts", "stops", "GPUs then", "reason"]
    lines = [
        [
            f"{its.at_s:.3f}",
            str(its.change or "-"),
            its.state,
            ", ".join(its.starts),
            ", ".join(its.stops),
            f"{its.gpus:g}",
            its.reason,
        ]
        for its in result.changes
    ]
    return f"<h2>{escape(heading)}</h2>\n" + html_table(head, lines)


def html_table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Cells as text, escaped."""
    rows = [f"<th>{'</th><th>'.join(map(escape, head))}</th>"]
    rows += [f"<td>{'</td><td>'.join(escape(str(cell)) for cell in line)}</td>" for line in lines]
    return f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table>"
