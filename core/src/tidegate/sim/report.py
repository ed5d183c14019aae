"""HTML pages of a scenario that was run, simulated or live, and of a goodput search."""

from collections.abc import Mapping, Sequence

from tidegate.report import Chart, Colors, Page, PageOrigin, PageSection, number_format, table
from tidegate.report.number_format import rate, share
from tidegate.sim import charts
from tidegate.sim.charts import LoadCurve, LoadPoint, gantt_charts, latency_over_load, over_load
from tidegate.sim.document import Document, as_csv, rows_csv
from tidegate.sim.goodput import Goodput
from tidegate.sim.result import TENANT_COLUMNS, RunResult, tenant_lines
from tidegate.sim.tables import advice_section, changes_section, downloads, figures_table, models_section
from tidegate.sim.verdicts import by_policy, goodput_verdicts, simulate_verdicts
from tidegate.workload import Scenario, layout_of


def simulate_page(
    title: str,
    scenario: Scenario,
    results: Sequence[RunResult],
    document: Document,
    origin: PageOrigin,
    *,
    target: str | None = None,
    verdicts: Sequence[str] | None = None,
    facts: Mapping[str, str] | None = None,
) -> str:
    """Return the page of `tidegate simulate` or `tidegate loadtest`.

    `document`: results as JSON, for download. `target`: server that was measured; None: workers were simulated or
    emulated. `verdicts`: sentences at the top; None: those of a simulation. `facts`: further lines at
    the end of the page.
    """
    colors = Colors((model.name for model in scenario.models), (result.total.policy for result in results))
    slos_ms = scenario.slos_ms
    several = by_policy(results)
    found = [
        charts.outcomes(results),
        charts.latency_curves(results, colors),
        charts.attainment_over_time(results, colors),
        charts.waiting_and_executing(results, slos_ms),
        PageSection("The figures", figures_table(results)),
        models_section(results, slos_ms) if len(scenario.request_names) > 1 else None,
        PageSection("Tenants", table(list(TENANT_COLUMNS), lines)) if (lines := tenant_lines(results)) else None,
        charts.batch_sizes(results),
        charts.busy_workers(results),
        *gantt_charts(results, colors),
        *(part for result in results for part in (advice_section(result), changes_section(result))),
    ]
    return Page(
        title,
        simulate_verdicts(scenario, results, workers=None if target else len(layout_of(scenario).workers))
        if verdicts is None
        else verdicts,
        origin,
        {
            "Policies": ", ".join(several) if target is None else "as the server has it",
            "Seeds": ", ".join(dict.fromkeys(str(result.total.seed) for result in results)),
            **({"Server": target} if target else {}),
            **(facts or {}),
        },
        document["scenario"],
        [each for each in found if each],
        (),
        downloads(document, rows_csv([row for result in results for row in result.rows])),
    ).html()


def goodput_page(title: str, goodputs: Sequence[Goodput], limit: float, document: Document, origin: PageOrigin) -> str:
    """Return the page of `tidegate goodput`: goodput with its spread, and the rates tried.

    `limit`: maximum miss rate of a model, 0 to 1. `document`: results as JSON, for download.
    """
    best = [search.best for goodput in goodputs for search in goodput.searches if search.best]
    colors = Colors((), (goodput.policy for goodput in goodputs))
    curves = [load_curve(goodput) for goodput in goodputs]
    parts: list[Chart | PageSection] = []
    if any(curve.tried for curve in curves):
        parts += [over_load(curves, limit, colors), latency_over_load(curves, colors)]
    head = ["policy", "median /s", "least", "most", "of the best", "seeds"]
    most = max(goodput.median_rps for goodput in goodputs) or 1.0
    lines = [
        [
            goodput.policy,
            ("" if all(search.bounded for search in goodput.searches) else "≥ ") + rate(goodput.median_rps),
            rate(goodput.min_rps),
            rate(goodput.max_rps),
            share(goodput.median_rps / most),
            len(goodput.searches),
        ]
        for goodput in goodputs
    ]
    note = (
        f"The highest rate at which at most {number_format.limit(limit)} of every model's requests "
        "are late, dropped or failed."
    )
    parts.append(PageSection("Goodput", table(head, lines), note))
    if best:
        parts.append(PageSection("At the goodput: the figures", figures_table(best)))
        parts += [each for each in (charts.batch_sizes(best),) if each]
    seeds = dict.fromkeys(str(search.seed) for goodput in goodputs for search in goodput.searches)
    facts = {
        "Seeds": ", ".join(seeds),
        "Limit": number_format.limit(limit),
        "Tolerance": number_format.limit(document["tolerance"]),
    }
    return Page(
        title,
        goodput_verdicts(goodputs, limit),
        origin,
        facts,
        document["scenario"],
        parts,
        downloads=downloads(document, _csv(goodputs)),
    ).html()


def _csv(goodputs: Sequence[Goodput]) -> str:
    head = ["policy", "seed", "rate_rps", "good", "worst_bad_rate", "p99_ms"]
    lines = [
        [goodput.policy, search.seed, probe.rate_rps, probe.good, probe.worst_bad_rate, probe.p99_ms]
        for goodput in goodputs
        for search in goodput.searches
        for probe in search.probes
    ]
    return as_csv(head, lines)


def load_curve(goodput: Goodput) -> LoadCurve:
    """Return the curve of all completed runs of a goodput search."""
    tried = [
        LoadPoint(probe.rate_rps, 1 - probe.worst_bad_rate, search.seed, probe.p99_ms)
        for search in goodput.searches
        for probe in search.probes
        if probe.worst_bad_rate is not None
    ]
    return LoadCurve(goodput.policy, tried, goodput.median_rps or None)
