"""Tables of the reports, and their data for download."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.report import Download, PageSection, table
from tidegate.report.number_format import rate, share
from tidegate.sim.document import Document, json_of
from tidegate.sim.result import ResultRow, RunResult

MAX_ADVICE = 50
"""Maximum number of lines in the table of recommendations: a policy may recommend at every event."""
MOST_OPEN, MOST_LINES = 12, 400
"""Number of lines from which a table of models is folded, and from which it is cut."""


def columns_of(results: Sequence[RunResult]) -> dict[str, Callable[[ResultRow], Any]]:
    """Return the columns of the table of runs, without those empty in all runs."""
    columns: dict[str, Callable[[ResultRow], Any]] = {
        "policy": lambda row: row.policy,
        "seed": lambda row: row.seed,
        "requests": lambda row: f"{row.accepted:,}",
        "on time": lambda row: share(row.attainment),
        "worst model": lambda row: share(1 - row.worst_bad_rate),
        "goodput /s": lambda row: rate(row.goodput_rps),
        "late": lambda row: f"{row.late:,}",
        "dropped": lambda row: ", ".join(f"{count:,} ({reason})" for reason, count in row.dropped.items()) or "0",
        "failed": lambda row: f"{row.failed + row.stranded:,}",
        "p50 ms": lambda row: _ms(row.p50_ms),
        "p99 ms": lambda row: _ms(row.p99_ms),
        "batch": lambda row: _or_dash(row.median_batch_rows),
    }
    totals = [result.total for result in results]
    if any(row.gap_p50_ms is not None for row in totals):
        columns["gap p50, p99 ms"] = lambda row: f"{_ms(row.gap_p50_ms)}, {_ms(row.gap_p99_ms)}"
    if any(row.gap_attainment is not None for row in totals):
        columns["gaps on time"] = lambda row: "-" if row.gap_attainment is None else share(row.gap_attainment)
    if all(len(result.rows) == 2 for result in results):
        del columns["worst model"]
    if any(row.touched_workers is not None for row in totals):
        columns["workers used"] = lambda row: _or_dash(row.touched_workers)
    if any(row.busy_shares for row in totals):
        columns["busy"] = lambda row: share(row.busy_share)
    if any(row.lateness_p99_ms is not None for row in totals):
        columns["generator late p50, p99 ms"] = lambda row: f"{row.lateness_p50_ms:.2f}, {row.lateness_p99_ms:.2f}"
    return columns


def figures_table(results: Sequence[RunResult], *, by_rate: bool = False) -> str:
    """Return the table with a line for each run; `by_rate`: with its rate."""
    columns = columns_of(results)
    if by_rate:
        columns = {"rate /s": lambda row: rate(row.rate_rps), **columns}
    return table(list(columns), [[show(result.total) for show in columns.values()] for result in results])


def models_section(results: Sequence[RunResult], slos_ms: Mapping[str, float | None]) -> PageSection:
    """Return the section with the figures of each model, since their SLOs differ."""
    head = ["model", "SLO ms", "policy", "seed", "requests", "on time", "late", "dropped", "failed", "p50 ms", "p95 ms"]
    head += ["p99 ms", "waiting ms", "executing ms", "mean batch"]
    rows = [row for result in results for row in result.rows[1:]]
    order = {model: number for number, model in enumerate(slos_ms)}
    rows.sort(key=lambda row: order[row.model])
    lines = [
        [
            row.model,
            _or_dash(slos_ms[row.model]),
            row.policy,
            row.seed,
            f"{row.accepted:,}",
            share(row.attainment),
            f"{row.late:,}",
            f"{sum(row.dropped.values()):,}",
            f"{row.failed + row.stranded:,}",
            *map(_ms, (row.p50_ms, row.p95_ms, row.p99_ms, row.mean_waiting_ms, row.mean_executing_ms)),
            "-" if row.mean_batch_rows is None else f"{row.mean_batch_rows:.1f}",
        ]
        for row in rows
    ]
    left = len(lines) - MOST_LINES
    note = f"The first {MOST_LINES} lines; {left:,} more in the data." if left > 0 else ""
    return PageSection(
        "The figures of each model", table(head, lines[:MOST_LINES]), note, folded=len(lines) > MOST_OPEN
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def advice_section(result: RunResult) -> PageSection | None:
    """Return the table of worker recommendations of a policy; None if it made none."""
    if not result.advice:
        return None
    heading = f"Advice on the number of workers: {result.total.policy}, seed {result.total.seed}"
    lines = [[f"{each.at_s:.3f}", f"{each.workers:+d}", each.reason] for each in result.advice[:MAX_ADVICE]]
    left = len(result.advice) - len(lines)
    if left:
        lines.append(["...", "", f"and {left:,} more"])
    return PageSection(heading, table(["at s", "workers", "reason"], lines))


def changes_section(result: RunResult) -> PageSection | None:
    """Return the table of layout changes; None if there were none."""
    if not result.changes:
        return None
    heading = f"Changes of the layout: {result.total.policy}, seed {result.total.seed}"
    head = ["at s", "change", "state", "starts", "stops", "GPUs", "reason"]
    lines = [
        [
            f"{its.at_s:.3f}",
            its.change or "",
            its.state,
            ", ".join(its.starts),
            ", ".join(its.stops),
            f"{its.gpus:g}",
            its.reason,
        ]
        for its in result.changes
    ]
    return PageSection(heading, table(head, lines))


def downloads(document: Document, spreadsheet: str) -> list[Download]:
    """Return the downloads of a page: the JSON document and its rows as CSV."""
    name = document["command"]
    return [
        Download(f"{name}.json", "application/json", json_of(document)),
        Download(f"{name}.csv", "text/csv", spreadsheet),
    ]
