"""Rate sweep: a scenario at several rates, on servers that keep running, to find the load that each sustains."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tidegate.report import Chart, Colors, Page, PageOrigin, PageSection, number_format, table
from tidegate.sim import charts
from tidegate.sim.charts import LoadCurve, LoadPoint, latency_over_load, over_load
from tidegate.sim.document import Document, rows_csv
from tidegate.sim.result import TENANT_COLUMNS, tenant_lines
from tidegate.sim.tables import downloads, figures_table
from tidegate.workload import Scenario, mean_rate_rps
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.open_loop import Progress
from tidegate_loadtest.scenario_run import LiveResult, LiveRun, live_document, not_measured_verdicts, run_live

Shown = Callable[[int, str, Progress | None], None]
"""Progress callback, called with (finished runs, current activity, progress of the run)."""


@dataclass(frozen=True)
class RateSweep:
    """Results of a rate sweep."""

    scenario: Scenario
    rates_rps: Sequence[float]
    limit: float
    """Fraction of every model's requests that may miss their SLO or fail."""
    lives: Sequence[LiveResult]

    def curves(self) -> list[LoadCurve]:
        """Return a curve for each policy or server: all measured rates, and the highest within the limit."""
        curves = []
        for policy in dict.fromkeys(live.run.policy.title for live in self.lives):
            own = [live for live in self.lives if live.run.policy.title == policy and not live.not_measured]
            if not own:
                continue
            rows = [(live.run.seed, live.result.total) for live in own]
            tried = [LoadPoint(row.rate_rps, 1 - row.worst_bad_rate, seed, row.p99_ms) for seed, row in rows]
            curves.append(LoadCurve(policy, tried, highest_within(tried, self.limit)))
        return curves

    def document(self) -> Document:
        """Return the document of `tidegate loadtest`: rows for each run, with `rate_rps`, and the sustained rates."""
        found = [{"policy": curve.name, "highest_rps": curve.found_rps} for curve in self.curves()]
        return {**live_document(self.scenario, self.lives), "limit": self.limit, "highest": found}


def parse_rates(text: str) -> list[float]:
    """Parse `100,200,400`, in requests per second; return them ascending. Raises LoadTestError."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or any(not isfinite(each) or each <= 0 for each in rates):
        raise LoadTestError(f"--rates {text!r}: write requests per second with commas, such as --rates 100,200,400")
    return sorted(set(rates))


def highest_within(tried: Sequence[LoadPoint], limit: float) -> float | None:
    """Return the highest rate at which, and at every lower one, the median over the seeds is within the limit."""
    found = None
    for rate_rps in sorted({each.rate_rps for each in tried}):
        if median(each.attainment for each in tried if each.rate_rps == rate_rps) < 1 - limit:
            break
        found = rate_rps
    return found


def run_rate_sweep(
    scenario: Scenario, runs: Sequence[LiveRun], rates_rps: Sequence[float], limit: float, shown: Shown
) -> RateSweep:
    """Run each of the runs at each of the rates, ascending; servers are started once.

    Raises what `run_live` raises. `limit`: fraction of requests that may fail or miss their SLO; `shown`: progress
    callback.
    """
    scenario_rps = mean_rate_rps(scenario)
    lives: list[LiveResult] = []
    for policy in dict.fromkeys(run.policy.title for run in runs):
        own = [run for run in runs if run.policy.title == policy]
        shown(len(lives), f"{policy}: starting", None)
        with _target(own[0]) as target:
            for rate_rps in rates_rps:
                for run in own:
                    at_rate = replace(run, target=target, load=rate_rps / scenario_rps)

                    def report(progress: Progress, done: int = len(lives), name: str = at_rate.name) -> None:
                        shown(done, f"{name}: {progress}", progress)

                    lives.append(run_live(at_rate, progress=report))
    return RateSweep(scenario, rates_rps, limit, lives)


@contextmanager
def _target(run: LiveRun) -> Iterator[str]:
    """The address that is asked: the server's that runs, or that of a cluster emulated until the block is left."""
    if run.target is not None:
        yield run.target
        return
    from tidegate_loadtest.emulated import emulated_cluster  # noqa: PLC0415 - of the extra `emulated`

    with (
        TemporaryDirectory(prefix="tidegate-loadtest-") as folder,
        emulated_cluster(run.scenario, run.policy, run.seed, Path(folder)) as cluster,
    ):
        yield cluster.address


def load_verdicts(sweep: RateSweep) -> list[str]:
    """Return sentences, the best first: the rate that each server sustains, and the rate at which it fails."""
    sentences = not_measured_verdicts(sweep.lives)
    for curve in sorted(sweep.curves(), key=lambda each: -(each.found_rps or 0)):
        kept = f"{number_format.limit(1 - sweep.limit)} of every model's requests on time"
        measured = sorted({point.rate_rps for point in curve.tried})
        above = [rate_rps for rate_rps in measured if rate_rps > (curve.found_rps or 0) * (1 + 1e-6)]
        if curve.found_rps is None:
            sentences.append(f"{curve.name} keeps {kept} not even at {number_format.rate(measured[0])} requests/s.")
        elif above:
            sentences.append(
                f"{curve.name} keeps {kept} up to {number_format.rate(curve.found_rps)} requests/s, and not at "
                f"{number_format.rate(above[0])}."
            )
        else:
            sentences.append(
                f"{curve.name} keeps {kept} at all rates, up to {number_format.rate(curve.found_rps)} requests/s: "
                f"more was not {'tried' if len(measured) == len(sweep.rates_rps) else 'measured'}."
            )
    return sentences


def rate_sweep_page(
    title: str,
    sweep: RateSweep,
    document: Document,
    origin: PageOrigin,
    *,
    target: str | None,
) -> str:
    """Return the page of `tidegate loadtest --rates`. `target`: address of the server; None: emulated clusters."""
    curves = sweep.curves()
    colors = Colors(sweep.scenario.request_names, (curve.name for curve in curves))
    results = [live.result for live in sweep.lives]
    highest = sweep.rates_rps[-1]
    at_highest = [result for result in results if abs(result.total.rate_rps - highest) < 1e-3 * highest]
    parts: list[Chart | PageSection] = [
        *([over_load(curves, sweep.limit, colors), latency_over_load(curves, colors)] if curves else []),
        PageSection("The figures at each rate", figures_table(results, by_rate=True)),
        *([PageSection("Tenants", table(list(TENANT_COLUMNS), lines))] if (lines := tenant_lines(results)) else []),
    ]
    if at_highest:
        ended = charts.outcomes(at_highest)
        parts.append(
            Chart(f"At {number_format.rate(highest)}/s: {ended.title}", ended.body, ended.legend, ended.note, True)
        )
    facts = {
        "Rates": ", ".join(f"{rate_rps:g}" for rate_rps in sweep.rates_rps),
        "Limit": number_format.limit(sweep.limit),
        "Seeds": ", ".join(dict.fromkeys(str(live.run.seed) for live in sweep.lives)),
        "Server": target or "emulated GPUs on this machine",
    }
    rows = [row for result in results for row in result.rows]
    return Page(
        title,
        load_verdicts(sweep),
        origin,
        facts,
        document["scenario"],
        parts,
        (),
        downloads(document, rows_csv(rows)),
    ).html()
