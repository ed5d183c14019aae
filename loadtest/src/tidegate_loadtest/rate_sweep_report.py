"""HTML page of a rate sweep."""

from tidegate.report import Chart, Colors, Page, PageOrigin, PageSection, number_format
from tidegate.sim import charts
from tidegate.sim.document import Document, rows_csv
from tidegate.sim.load_sweep import latency_over_load, over_load
from tidegate.sim.tables import downloads, figures_table
from tidegate_loadtest.rate_sweep import RateSweep, load_verdicts


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
    colors = Colors((model.name for model in sweep.scenario.models), (curve.name for curve in curves))
    results = [live.result for live in sweep.lives]
    highest = sweep.rates_rps[-1]
    at_highest = [result for result in results if abs(result.total.rate_rps - highest) < 1e-3 * highest]
    parts: list[Chart | PageSection] = [
        *([over_load(curves, sweep.limit, colors), latency_over_load(curves, colors)] if curves else []),
        PageSection("The figures at each rate", figures_table(results, by_rate=True)),
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
