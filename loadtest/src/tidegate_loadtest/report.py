"""Summary of a run as a table."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from tidegate_loadtest.result import Summary
from tidegate_loadtest.server_stats import ServerUsage


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
