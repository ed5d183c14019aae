"""Goodput: the highest rate at which every model keeps its bad rate within a limit, found by bisection."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, SimulationError, simulate

MAX_MISS_RATE = 0.01
"""Default limit of a model's miss rate (late, dropped, failed)."""
RATE_TOLERANCE = 0.005
"""Default relative difference between the rate found and the lowest rate that fails."""
FIRST_STEP = 1.1
"""First factor by which the rate changes; each further step squares it, until one rate is good and one is not."""
CHART_RATE_FACTORS = (0.8, 1.1, 1.25)
"""Factors of the rate found at which charts have additional runs."""
LARGEST_LOAD, SMALLEST_LOAD = 32.0, 1e-3
"""Largest and smallest rate of the search, as factors of the scenario's own rate."""


@dataclass(frozen=True)
class RateProbe:
    """Result of a run at one rate."""

    rate_rps: float
    good: bool
    worst_bad_rate: float | None
    """Miss rate of the worst model; None: the run was stopped early, because it exceeded the limit."""
    p99_ms: float | None = None
    """99th percentile of the latency of answered requests in ms; None: stopped early, or none was answered."""


@dataclass(frozen=True)
class GoodputSearch:
    """Goodput of one policy with one seed, and the rates tried."""

    policy: str
    seed: int
    rate_rps: float
    """Highest good rate in requests per second; 0: none was good."""
    bounded: bool
    """Whether some rate was too high; False: even the highest rate tried was good."""
    probes: list[RateProbe]
    """Runs at all rates tried, in order."""
    best: RunResult | None
    """Run at the rate found; None if there is none."""


@dataclass(frozen=True)
class Goodput:
    """Goodput of one policy over several seeds.

    The spread matters: the attainment of some policies drops suddenly at a rate that depends on the seed.
    """

    policy: str
    median_rps: float
    min_rps: float
    max_rps: float
    searches: list[GoodputSearch]


@dataclass(frozen=True)
class GoodputQuery:
    """Input of a goodput search: a run, whose load is the first rate, and a limit of the miss rate. Can be pickled."""

    run: RunSpec
    limit: float = MAX_MISS_RATE
    tolerance: float = RATE_TOLERANCE
    whole: bool = False
    """For charts: complete failing runs, too, so that their miss rate is known, and also try CHART_RATE_FACTORS of the
    result.
    """


def search_goodput(question: GoodputQuery) -> GoodputSearch:
    """Search the highest good rate by bisection on the load.

    The same seed draws the same arrivals at every load, compressed in time, so loads differ in nothing else. A run ends
    as soon as its miss rate is certain to exceed the limit, unless the query is a `whole` one. The search assumes that
    all rates below a good one are good; otherwise the result is one of the borders. A rate at which some model gets no
    request in the window is not good.

    Raises what `simulate` raises, and SimulationError if no model has an SLO or a model gets no request.
    """
    run, limit = question.run, question.limit
    if all(model.slo_ms is None for model in run.scenario.models):
        raise SimulationError("no model of the scenario has an SLO (slo_ms): at no rate would a request be late")
    loaded = {
        name for name, weight in zip(run.scenario.request_names, run.scenario.all_weights(), strict=True) if weight
    }
    probes: list[RateProbe] = []
    best: RunResult | None = None

    def is_good(load: float) -> bool:
        nonlocal best
        result = simulate(replace(run, load=load, bad_limit=None if question.whole else limit))
        bad_rate = result.total.worst_bad_rate
        unseen = [row.model for row in result.rows[1:] if not row.accepted and row.model in loaded]
        if unseen and not probes:
            raise SimulationError(f"no request of model {unseen[0]!r} falls into the window: lengthen duration_s")
        good = not (result.stopped_early or unseen) and bad_rate <= limit
        known = (None, None) if result.stopped_early else (bad_rate, result.total.p99_ms)
        probes.append(RateProbe(result.total.rate_rps, good, *known))
        if good and (best is None or result.total.rate_rps > best.total.rate_rps):
            best = result
        return good

    good, bad = _bracket(is_good, run.load)
    while bad is not None and good is not None and bad - good > question.tolerance * good:
        middle = (good + bad) / 2
        if is_good(middle):
            good = middle
        else:
            bad = middle
    found = best
    if question.whole and good is not None:
        for factor in CHART_RATE_FACTORS:
            is_good(factor * good)
    rate_rps = found.total.rate_rps if found else 0.0
    return GoodputSearch(run.policy.title, run.seed, rate_rps, bad is not None, probes, found)


def summarize_searches(searches: list[GoodputSearch]) -> list[Goodput]:
    """Return median, minimum and maximum goodput over the seeds, policy by policy."""
    goodputs = []
    for policy in dict.fromkeys(search.policy for search in searches):
        own = [search for search in searches if search.policy == policy]
        rates = [search.rate_rps for search in own]
        goodputs.append(Goodput(policy, median(rates), min(rates), max(rates), own))
    return goodputs


def _bracket(is_good: Callable[[float], bool], load: float) -> tuple[float | None, float | None]:
    """A load that is good and one that is not, with longer and longer steps; None where there is none within reach."""
    factor = FIRST_STEP
    first = is_good(load)
    while SMALLEST_LOAD < load < LARGEST_LOAD:
        before, load = load, load * factor if first else load / factor
        factor *= factor
        if is_good(load) != first:
            return (before, load) if first else (load, before)
    return (load, None) if first else (None, load)
