"""The figures for people."""

from collections.abc import Callable
from typing import Final

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tidegate_proxy.app.top.figures import Figures

GOOD: Final = 0.99
"""From this share in time on a model does well."""
FAIR: Final = 0.9
"""From this one on just so."""


def tables_of(figures: Figures, address: str) -> Group:
    """A line for the whole, a table of the models, and one of the workers."""
    return Group(_headline(figures, address), _models(figures), _workers(figures))


def _headline(figures: Figures, address: str) -> Text:
    rate = sum(model.rate_rps for model in figures.models)
    advice = "".join(
        f"; the policy would {advice} {count:.0f} workers" for advice, count in figures.advised.items() if count
    )
    return Text(
        f"Tidegate {figures.version} at {address}, policy {figures.policy}: {rate:,.1f} requests/s over "
        f"{figures.connections} connections{advice}",
        style="bold",
    )


def _models(figures: Figures) -> Table:
    table = Table("model")
    for heading in ("requests/s", "in time", "late", "dropped", "failed", "waiting", "p50 ms", "p99 ms", "rows/batch"):
        table.add_column(heading, justify="right")
    for model in figures.models:
        table.add_row(
            escape(model.name),
            f"{model.rate_rps:,.1f}",
            _in_time(model.in_time),
            *(_shown(share, _percent) for share in (model.late, model.dropped, model.failed)),
            f"{model.waiting:,}",
            *(_shown(value, lambda x: f"{x:,.1f}") for value in (model.p50_ms, model.p99_ms)),
            _shown(model.mean_rows, lambda x: f"{x:.1f}"),
        )
    if not figures.models:
        table.add_row("[dim]no request yet[/]")
    return table


def _workers(figures: Figures) -> Table:
    table = Table("worker", "state")
    table.add_column("busy", justify="right")
    for worker in figures.workers:
        table.add_row(escape(worker.name), "[green]up[/]" if worker.is_up else "[red]away[/]", f"{worker.busy:.0%}")
    return table


def _in_time(share: float | None) -> str:
    if share is None:
        return ""
    style = "green" if share >= GOOD else "yellow" if share >= FAIR else "red"
    return f"[{style}]{_percent(share)}[/]"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _shown(value: float | None, words: Callable[[float], str]) -> str:
    return "" if value is None else words(value)
