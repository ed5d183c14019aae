"""Choice among plans of one problem, each simulated with ELSA."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from heapq import heapreplace
from itertools import accumulate
from random import Random

from tidegate.api import PlanningError, Progress
from tidegate.schemas import Layout
from tidegate_paris_elsa.plan import MigPlan
from tidegate_paris_elsa.problem import MigModel, MigProblem
from tidegate_paris_elsa.slices import SliceSpeed, offers_of

LATE_FRACTION = 0.05
"""Fraction of requests that may be late or dropped, as for the paper's 95th percentile."""
RATE_PRECISION = 0.01
"""Relative precision of the sustained rate."""
MAX_SIMULATED_SLICES = 300
"""Number of slices from which a layout is simulated in proportion."""


class SliceSimulation:
    """Random requests of one model, the same for all slices that are compared."""

    def __init__(self, model: MigModel, speeds: Sequence[SliceSpeed], requests: int, seed: int) -> None:
        """Draw the requests.

        `model`: it has an SLO. `speeds`: latencies by slice type, slowest first. `requests`: their number; `seed`:
        of sizes and arrivals.
        """
        assert model.slo_ms is not None, "without one nothing is late"
        rng = Random(seed)
        rows = rng.choices(list(model.shares), list(model.shares.values()), k=requests)
        self._slo_s = model.slo_ms / 1000
        self._arrivals = list(accumulate(rng.expovariate(1.0) for _ in range(requests)))
        """Arrivals at one request per second."""
        self._slice_types = [speed.slice_type for speed in speeds]
        tables = [_rising_s(speed, sorted(model.shares)) for speed in speeds]
        self._works_s = [[table[each] for table in tables] for each in rows]
        """Latency of each request in seconds, by position of the slice type."""
        self._mean_s = [sum(works) / requests for works in zip(*self._works_s, strict=True)]

    def sustained_rps(self, slices: Mapping[int, int]) -> float:
        """Return the highest rate at which at most `LATE_FRACTION` of the requests are late or dropped.

        `slices`: number by slice type.
        """
        total = sum(slices.values())
        scale = min(1.0, MAX_SIMULATED_SLICES / total)
        counts = [
            max(1, round(scale * slices[slice_type])) if slices.get(slice_type) else 0
            for slice_type in self._slice_types
        ]
        scale = sum(counts) / total
        low_rps, high_rps = 0.0, 2 * sum(count / mean_s for count, mean_s in zip(counts, self._mean_s, strict=True))
        while high_rps - low_rps > RATE_PRECISION * high_rps:
            rate_rps = (low_rps + high_rps) / 2
            if self._late_fraction(counts, rate_rps) <= LATE_FRACTION:
                low_rps = rate_rps
            else:
                high_rps = rate_rps
        return low_rps / scale

    def _late_fraction(self, counts: Sequence[int], rate_rps: float) -> float:
        """ELSA: the smallest slice on which a request is on time, else none."""
        pools = [(place, [0.0] * count) for place, count in enumerate(counts) if count]
        slo_s, late, most = self._slo_s, 0, LATE_FRACTION * len(self._arrivals)
        for arrival, works_s in zip(self._arrivals, self._works_s, strict=True):
            now_s = arrival / rate_rps
            for place, free_s in pools:
                ends_s = max(now_s, free_s[0]) + works_s[place]
                if ends_s <= now_s + slo_s:
                    heapreplace(free_s, ends_s)
                    break
            else:
                late += 1
                if late > most:
                    break
        return late / len(self._arrivals)


def _rising_s(speed: SliceSpeed, sizes: Sequence[int]) -> dict[int, float]:
    """Latency in seconds by rows; more rows never take less."""
    return dict(zip(sizes, accumulate((speed.latency_ms(rows) / 1000 for rows in sizes), max), strict=True))


Candidate = Callable[..., MigPlan]
"""Function from `time_limit_s` and `progress` to a plan. Raises PlanningError."""
FIRST_TIME_FRACTION = 0.5
"""Fraction of the time limit for the first candidate; the others share the rest."""
FIRST_REQUESTS, FINAL_REQUESTS = 1500, 6000
"""Number of simulated requests of each model in the first round, and of the best candidates."""
MAX_FINALISTS = 3
"""Number of candidates of the second round."""


def best_plan(
    problem: MigProblem, candidates: Mapping[str, Candidate], *, time_limit_s: float, progress: Progress
) -> MigPlan:
    """Return the candidate that sustains the highest load in simulation, with that load.

    `problem`: some of its models have an SLO. `candidates`: plans to make, by method. `time_limit_s`: seconds after
    which no further candidate is made. Raises PlanningError if the first has no plan.
    """
    (first, made), *others = candidates.items()
    plans = {first: made(time_limit_s=FIRST_TIME_FRACTION * time_limit_s, progress=progress)}
    for method, candidate in others:
        if progress() >= time_limit_s:
            break
        try:
            plan = candidate(time_limit_s=time_limit_s, progress=progress)
        except PlanningError:
            continue  # such equal slices do not spend these GPCs, or are too slow or too small for a model
        if all(plan.gpus != other.gpus for other in plans.values()):
            plans[method] = plan
    loads = _loads(problem, plans, FIRST_REQUESTS, seed=1)
    finalists = sorted(plans, key=lambda method: -loads[method])[:MAX_FINALISTS]
    loads = _loads(problem, {method: plans[method] for method in finalists}, FINAL_REQUESTS, seed=2)
    best = max(finalists, key=lambda method: loads[method])
    return plans[best].model_copy(
        update={
            "method": best,
            "objective": loads[best],
            "bound": None,
            "models": tuple(
                planned.model_copy(update={"rate_rps": round(loads[best] * model.weight, 3)})
                for model, planned in zip(problem.models, plans[best].models, strict=True)
            ),
        }
    )


def _loads(problem: MigProblem, plans: Mapping[str, MigPlan], requests: int, *, seed: int) -> dict[str, float]:
    """The load that each plan sustains: that of its worst model, relative to the models' weights.

    A model without an SLO has what its plan says.
    """
    offers = offers_of(problem.model_copy(update={"gpcs": None}))
    number_of = {slice_type.name: number for number, slice_type in enumerate(offers.slice_types)}
    loads = {method: float("inf") for method in plans}
    for place, (model, speeds) in enumerate(zip(problem.models, offers.speeds, strict=True)):
        simulated = SliceSimulation(model, speeds, requests, seed) if model.slo_ms is not None else None
        for method, plan in plans.items():
            planned = plan.models[place]
            slices = {number_of[name]: count for name, count in planned.slices.items() if count}
            rate_rps = simulated.sustained_rps(slices) if simulated else planned.rate_rps
            loads[method] = min(loads[method], rate_rps / model.weight)
    return loads


def layout_load(problem: MigProblem, layout: Layout, *, requests: int = FINAL_REQUESTS, seed: int = 3) -> float:
    """Return the load, relative to the models' weights, that the slices of a layout sustain under ELSA.

    A model without an SLO has all sizes wherever they fit. `requests`, `seed`: of the simulation. Raises PlanningError
    for a model that was not measured on the slices.
    """
    offers = offers_of(problem.model_copy(update={"gpcs": None}))
    number_of = {slice_type.name: number for number, slice_type in enumerate(offers.slice_types)}
    model_of = {part.name: part.model for part in layout.partitions}
    slices: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for worker in layout.workers:
        slice_type = number_of.get(worker.device.device_class(worker.slice))
        if slice_type is None:
            raise PlanningError(f"worker {worker.name!r} is on no slice type of the problem: plan its layout from it")
        for name in worker.hosts:
            slices[model_of[name]][slice_type] += 1
    loads = []
    for model, speeds in zip(problem.models, offers.speeds, strict=True):
        known = {speed.slice_type for speed in speeds}
        mine = {slice_type: count for slice_type, count in slices[model.name].items() if slice_type in known}
        if not mine:
            loads.append(0.0)
        elif model.slo_ms is None:
            rate_rps = sum(
                count / sum(share / speed.throughput_rps(rows) for rows, share in model.shares.items())
                for speed in speeds
                if (count := mine.get(speed.slice_type))
            )
            loads.append(rate_rps / model.weight)
        else:
            loads.append(SliceSimulation(model, speeds, requests, seed).sustained_rps(mine) / model.weight)
    return min(loads)


def buckets(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return at most `most` ranges (first, last) of sizes in rows, each with about as many sizes."""
    count = min(most, len(sizes))
    ends = [len(sizes) * (number + 1) // count for number in range(count)]
    return [(sizes[begin], sizes[end - 1]) for begin, end in zip([0, *ends], ends, strict=False)]
