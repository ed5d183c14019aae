"""SLO attainment of a test, by model, by tenant, and of the gaps of streams: what Locust's own statistics lack."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tidegate.api import NS_PER_MS

ENDED, ON_TIME, SENT_LATE, FAILED_PREFIX = "ended", "on time", "sent late", "failed: "
GAP_TYPE = "gap"
"""Kind of the mean time between the responses of a stream, in Locust's statistics and in the table."""
LATENESS_LIMIT_NS = 5 * NS_PER_MS
"""Delay from schedule to sending from which the load generator was late."""
MAX_LATE_FRACTION = 0.01
"""Fraction of late sends from which a run measures the generator instead of the server."""
TABLE_COLUMNS = {
    "name": "Model",
    "slo_ms": "SLO (ms)",
    "requests": "# Requests",
    "attainment": "Attainment",
    "goodput": "Goodput (/s)",
    "failed": "Not answered",
    "verdict": "Generator",
}
"""Titles of the columns, by key; percentiles of the latency are among Locust's own."""


def gap_line(model: str) -> str:
    """Return the name of the line with the gaps of a model's streams."""
    return f"{model} {GAP_TYPE}"


def tenant_line(tenant: str) -> str:
    """Return the name of the line of a tenant."""
    return f"tenant {tenant}"


class Attainment:
    """Counts of the measured requests that have ended, by line; a worker's are taken at each of its reports."""

    def __init__(self) -> None:
        self.all_ended = 0
        """Number of requests that have ended, warm-up included."""
        self._counts: dict[str, Counter[str]] = {}

    def add(self, model: str, status: str, *, on_time: bool, late_ns: int) -> None:
        """Count a request. `status`: "" if it was answered; `on_time`: within its SLO; `late_ns`: until sent."""
        counts = self._counts.setdefault(model, Counter())
        counts.update([ENDED, *([ON_TIME] if on_time else []), *([FAILED_PREFIX + status] if status else [])])
        counts[SENT_LATE] += late_ns > LATENESS_LIMIT_NS

    def take(self) -> dict[str, Any]:
        """Return the counts for the master, and forget them."""
        taken = {"all_ended": self.all_ended, "counts": {model: dict(its) for model, its in self._counts.items()}}
        self.all_ended, self._counts = 0, {}
        return taken

    def merge(self, taken: Mapping[str, Any]) -> None:
        """Add what a worker has taken."""
        self.all_ended += taken["all_ended"]
        for model, counts in taken["counts"].items():
            self._counts.setdefault(model, Counter()).update(counts)

    def rows(
        self, slos_ms: Mapping[str, float | None], window_s: float, scheduled: Mapping[str, int] | None = None
    ) -> list[dict[str, Any]]:
        """Return a line for each model, graph and tenant that has requests, and for gaps.

        Args:
            slos_ms: SLO of each line.
            window_s: length of the measured window so far, in seconds.
            scheduled: requests of each line in the window, if all should have ended; the others count as lost.
        """
        lines = []
        for model, slo_ms in slos_ms.items():
            counts = self._counts.get(model, Counter())
            total = counts[ENDED] if scheduled is None else scheduled.get(model, counts[ENDED])
            if not total:
                continue
            lost = [f"{total - counts[ENDED]} UNREPORTED"] if total > counts[ENDED] else []
            failed = [
                f"{counts[key]} {key.removeprefix(FAILED_PREFIX)}"
                for key in sorted(counts)
                if key.startswith(FAILED_PREFIX)
            ]
            late = counts[SENT_LATE] / max(1, counts[ENDED])
            lines.append(
                {
                    "name": model,
                    "slo_ms": "-" if slo_ms is None else f"{slo_ms:g}",
                    "requests": total,
                    "attainment": f"{counts[ON_TIME] / total:.2%}",
                    "goodput": f"{counts[ON_TIME] / window_s:.1f}",
                    "failed": ", ".join(failed + lost) or "0",
                    "verdict": f"not measured: {late:.1%} sent late" if late > MAX_LATE_FRACTION else "kept up",
                }
            )
        return lines


def print_rows(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the lines as a table."""
    table = Table(*TABLE_COLUMNS.values(), title="SLO attainment")
    for row in rows:
        table.add_row(*(str(row[key]) for key in TABLE_COLUMNS))
    console.print(table)
