"""HTML page of a goodput search: the goodput with its spread, and every rate tried."""

from collections.abc import Sequence

from tidegate.report import Chart, Colors, Page, PageOrigin, PageSection, number_format, table
from tidegate.report.number_format import rate, share
from tidegate.sim import charts
from tidegate.sim.document import Document, as_csv
from tidegate.sim.goodput import Goodput
from tidegate.sim.load_sweep import LoadCurve, LoadPoint, latency_over_load, over_load
from tidegate.sim.tables import downloads, figures_table
from tidegate.sim.verdicts import goodput_verdicts


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
        "Precision": number_format.limit(document["precision"]),
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
