"""Outcome of a Locust test as the result of `tidegate loadtest`: the same SLO evaluation, columns and report."""

import csv
import json
from array import array
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tidegate.api import NS_PER_MS
from tidegate.commands.common import origin, title_of, write_results
from tidegate.sim.report import simulate_page
from tidegate.workload import RequestSequence
from tidegate.workload.arrivals import NS_PER_S
from tidegate_loadtest.commands.loadtest import print_lives
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.live import LiveObservations
from tidegate_loadtest.locust.coordinator import Column, Coordinator
from tidegate_loadtest.locust.load import Load
from tidegate_loadtest.result import RunResult, Summary
from tidegate_loadtest.scenario_run import LiveResult, live_document, live_verdicts, plan_runs
from tidegate_loadtest.server_stats import ServerUsage
from tidegate_loadtest.slo_evaluation import judge


def print_report(console: Console, summary: Summary, usage: ServerUsage | None, messages: Mapping[str, str]) -> None:
    """Print the client-side results, the server's statistics, and the first message of each failure."""
    table = Table(show_header=False, title=f"{summary.issued} requests in {summary.window_s:g} s")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("offered", f"{summary.offered_rps:.1f} /s")
    table.add_row("answered", f"{summary.completed} ({summary.throughput_rps:.1f} /s)")
    for status, failures in summary.failed.items():
        table.add_row(f"failed: {status}", str(failures), style="red")
    table.add_row(f"attainment of {summary.slo_ms:g} ms", f"{summary.attainment:.2%}")
    table.add_row("goodput", f"{summary.goodput_rps:.1f} /s")
    table.add_row("latency p50", _ms(summary.p50_ms))
    table.add_row("latency p95", _ms(summary.p95_ms))
    table.add_row("latency p99", _ms(summary.p99_ms), end_section=True)
    if usage is not None:
        table.add_row("mean batch, rows", "-" if usage.mean_rows is None else f"{usage.mean_rows:.2f}")
        table.add_row("instances busy", f"{usage.busy_share:.1%}", end_section=True)
    table.add_row("generator late p50", _ms(summary.lateness_p50_ms))
    table.add_row("generator late p99", _ms(summary.lateness_p99_ms))
    console.print(table)
    for status, message in messages.items():
        console.print(f"first {status}: {message}", markup=False, highlight=False)
    if summary.not_measured:
        console.print(f"Not measured: {summary.not_measured}.", style="bold red")


def _ms(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms:.2f} ms"


UNREPORTED_STATUS = "UNREPORTED"
"""Status of a request whose worker was lost: it is unknown whether the request was sent or answered."""

NO_SLO_MS = 1e9


def outcome(conductor: Coordinator) -> tuple[RequestSequence, RunResult, int]:
    """Return the requests, warm-up included, the results of those in the window, and the index of the first of these.

    For a stopped test, only requests that were due and had ended before count. Raises LoadTestError if there are none.
    """
    load = conductor.load
    assert load is not None
    gathered = conductor.rows()
    rows, statuses, messages = gathered.columns, gathered.statuses, gathered.messages
    if conductor.stopped_ns is not None:
        ended = rows["finished_ns"] <= conductor.stopped_ns
        rows = {name: column[ended] for name, column in rows.items()}
    requests = load.requests
    order = np.argsort(rows["number"] if load.options.open_loop else rows["scheduled_ns"], kind="stable")
    rows = {name: column[order] for name, column in rows.items()}
    names = np.array([*statuses, UNREPORTED_STATUS])
    if load.options.open_loop:
        if conductor.stopped_ns is None:
            rows, messages = _completed(load, rows, messages, len(statuses))
        else:
            requests = _part(requests, rows["number"])
    first = int(np.searchsorted(rows["scheduled_ns"], 0))
    if first == len(rows["number"]):
        raise LoadTestError("no request was due, and had ended, in the measured window: ask for more, or for longer")
    window_ns = load.window_ns or 0
    if conductor.stopped_ns is not None:
        window_ns = min(window_ns or conductor.stopped_ns, conductor.stopped_ns)
    run = RunResult(
        window_ns=window_ns,
        began_ns=0,
        scheduled_ns=rows["scheduled_ns"][first:],
        issued_ns=rows["issued_ns"][first:],
        finished_ns=rows["finished_ns"][first:],
        status=names[rows["status"][first:]],
        messages=messages,
        lateness_limit_ms=load.options.lateness_limit_ms,
    )
    return requests, run, first


def _completed(
    load: Load, rows: dict[str, Column], messages: dict[str, str], unreported: int
) -> tuple[dict[str, Column], dict[str, str]]:
    """Return a row for every request of the schedule: those that no worker reported count as never sent."""
    at_ns = np.frombuffer(load.requests.at_ns, np.int64) - load.warmup_ns
    if len(rows["number"]) == len(at_ns):
        return rows, messages
    end_ns = max(load.window_ns or 0, int(rows["finished_ns"].max(initial=0)))
    full = {
        "number": np.arange(len(at_ns)),
        "scheduled_ns": at_ns,
        "issued_ns": np.full(len(at_ns), end_ns),
        "finished_ns": np.full(len(at_ns), end_ns),
        "status": np.full(len(at_ns), unreported),
    }
    for name in ("issued_ns", "finished_ns", "status"):
        full[name][rows["number"]] = rows[name]
    lost = len(at_ns) - len(rows["number"])
    return full, {**messages, UNREPORTED_STATUS: f"{lost} requests went with a worker that was lost"}


def _part(whole: RequestSequence, number: Column) -> RequestSequence:
    return replace(
        whole,
        at_ns=array("q", [whole.at_ns[index] for index in number]),
        model=array("q", [whole.model[index] for index in number]),
        rows=whole.rows and array("q", [whole.rows[index] for index in number]),
        apps=None,
        times_ms=None,
    )


def report(conductor: Coordinator, console: Console) -> None:
    """Print SLO attainment and lateness, and write the requested files. Raises LoadTestError, OSError."""
    load, options = conductor.load, conductor.options
    assert load is not None
    if options.requests_csv:
        _write_requests(Path(options.requests_csv), conductor)
    requests, run, first = outcome(conductor)
    if conductor.stopped_ns is not None and options.open_loop:
        console.print(f"Stopped after {run.window_ns / NS_PER_S:.1f} s of the window: what had ended by then counts.")
    if load.scenario is None:
        _report_model(conductor, console, run)
        return
    scenario = load.scenario.model_copy(update={"duration_s": run.window_ns / NS_PER_S})
    seen = LiveObservations(run, first, conductor.usage)
    (planned,) = plan_runs(scenario, options.policies, [load.seed], options.sending(), target=conductor.target)
    result = judge(
        scenario,
        requests,
        seen,
        policy=planned.policy.title,
        seed=load.seed,
        event_log=None,
        gantt_s=1.0 if options.results_html else 0.0,
    )
    live = LiveResult(planned, result, seen)
    title = f"{title_of(scenario)}, live on {conductor.target}"
    verdicts = live_verdicts(scenario, [live], workers=None)
    print_lives(console, title, [live], verdicts)
    written = live_document(scenario, [live])
    write_results(
        console,
        written,
        _path(options.results_json),
        _path(options.results_html),
        lambda: simulate_page(
            title, scenario, [live.result], written, origin(), target=conductor.target, verdicts=verdicts
        ),
    )


def _write_requests(path: Path, conductor: Coordinator) -> None:
    """A line for each request that has ended, warm-up included; milliseconds of the measured window."""
    assert conductor.load is not None
    gathered, load = conductor.rows(), conductor.load
    columns = {name: column.tolist() for name, column in gathered.columns.items()}
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["number", "worker", "model", "due_ms", "sent_ms", "ended_ms", "status"])
        for sender, number, *times_ns, status in zip(gathered.senders, *columns.values(), strict=True):
            model = load.requests.models[load.requests.model[number] if load.options.open_loop else 0]
            times_ms = [f"{at_ns / NS_PER_MS:.6f}" for at_ns in times_ns]
            lines.writerow([number, sender, model, *times_ms, gathered.statuses[status]])


def _path(file: str | None) -> Path | None:
    return None if file is None else Path(file)


def _report_model(conductor: Coordinator, console: Console, run: RunResult) -> None:
    options = conductor.options
    assert options.model is not None
    assert options.slo_ms is not None
    summary, usage = run.summary(options.slo_ms), conductor.usage.get(options.model)
    print_report(console, summary, usage, run.messages)
    if options.results_json:
        asked = {"target": conductor.target, "model": options.model, "seed": options.seed or 0, "rows": options.rows}
        measured = {"summary": asdict(summary), "server": usage and asdict(usage), "messages": dict(run.messages)}
        Path(options.results_json).write_text(json.dumps({**asked, **measured}, indent=1) + "\n", encoding="utf-8")


def by_model(conductor: Coordinator) -> list[dict[str, Any]]:
    """Return the rows of Locust's page: one for each model, over the requests that have ended so far."""
    load = conductor.load
    if load is None:
        return []
    gathered = conductor.rows()
    measured = gathered.columns["scheduled_ns"] >= 0
    rows = {name: column[measured] for name, column in gathered.columns.items()}
    names = np.array([*gathered.statuses, UNREPORTED_STATUS])
    models = np.frombuffer(load.requests.model, np.int64)
    model_of = models[rows["number"]] if load.options.open_loop else np.zeros(len(rows["number"]), np.int64)
    window_ns = max(1, min(load.window_ns or conductor.now_ns, conductor.stopped_ns or conductor.now_ns))
    lines = []
    for position, (model, slo_ms) in enumerate(load.slo_ms.items()):
        mine = model_of == position
        if not mine.any():
            continue
        run = RunResult(
            window_ns=window_ns,
            began_ns=0,
            **{name: rows[name][mine] for name in ("scheduled_ns", "issued_ns", "finished_ns")},
            status=names[rows["status"][mine]],
            lateness_limit_ms=load.options.lateness_limit_ms,
        )
        lines.append(_line(model, slo_ms, run))
    return lines


def _line(model: str, slo_ms: float | None, run: RunResult) -> dict[str, Any]:
    summary = run.summary(NO_SLO_MS if slo_ms is None else slo_ms)
    return {
        "name": model,
        "slo_ms": "-" if slo_ms is None else f"{slo_ms:g}",
        "requests": summary.issued,
        "attainment": f"{summary.attainment:.2%}",
        "goodput": f"{summary.goodput_rps:.1f}",
        "failed": ", ".join(f"{count} {status}" for status, count in summary.failed.items()) or "0",
        "p50": "-" if summary.p50_ms is None else f"{summary.p50_ms:.1f}",
        "p99": "-" if summary.p99_ms is None else f"{summary.p99_ms:.1f}",
        "late": f"{summary.lateness_p50_ms:.2f}, {summary.lateness_p99_ms:.2f}",
        "verdict": f"not measured: {summary.not_measured}" if summary.not_measured else "kept up",
    }
