"""The planner `paris`, and its baselines: equal slices, the best equal slices, random slices."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from tidegate.api import PlanningError, Progress
from tidegate.schemas import Device
from tidegate_paris_elsa.budget import Budget, gpus_cut
from tidegate_paris_elsa.plan import MigPlan, PlannedGpu, PlannedModel, PlannedSegment, PlannedSlice
from tidegate_paris_elsa.portfolio import Candidate, best_plan, buckets
from tidegate_paris_elsa.problem import GpuPool, MigModel, MigProblem, Size
from tidegate_paris_elsa.program import SizeDemand, SliceCounts, share_out, solve
from tidegate_paris_elsa.slices import (
    KneeSource,
    SliceOffers,
    SliceSpeed,
    SliceType,
    instances,
    knee_of,
    offers_of,
    segments_of,
    work_s,
)


def place(problem: MigProblem, slice_types: Sequence[SliceType], counts: SliceCounts) -> tuple[PlannedGpu, ...]:
    """Return the GPUs with slices, those of each pool from the first one on.

    Slices of one type are dealt to the models in rotation, so the loss of a machine or a GPU affects several models a
    little.
    """
    waiting: defaultdict[int, deque[int]] = defaultdict(deque)
    for slice_type in range(len(slice_types)):
        left = +Counter({model: count for (model, its), count in counts.slices.items() if its == slice_type})
        while left:
            for model in sorted(left):
                waiting[slice_type].append(model)
            left -= Counter(dict.fromkeys(left, 1))
    gpus = []
    for pool, number, cut in gpus_cut(problem, counts.cuts):
        owners = {
            slice_type: [waiting[slice_type].popleft() for _ in range(count) if waiting[slice_type]]
            for slice_type, count in enumerate(cut)
        }
        names = [slice_types[slice_type].mig.name for slice_type, mine in owners.items() for _ in mine]
        placed = problem.gpus[pool].geometry.place(names)
        assert placed is not None, "what is left of a legal cut is legal"
        by_name = {slice_types[slice_type].mig.name: iter(mine) for slice_type, mine in owners.items() if mine}
        slices = tuple(
            PlannedSlice(
                profile=instance.profile,
                start=instance.start,
                model=problem.models[next(by_name[instance.profile])].name,
            )
            for instance in placed
        )
        if slices:
            gpus.append(PlannedGpu(device=device_of(problem.gpus[pool], number), slices=slices))
    return tuple(gpus)


def device_of(pool: GpuPool, number: int) -> Device:
    """Return the device of a pool's GPU, by index, with its node."""
    node, index = divmod(number, pool.per_node)
    return Device(f"{pool.product}-node-{node}", index, pool.product, pool.memory_mib)


HOMOGENEOUS_GPCS: tuple[Size, ...] = (1, 2, 3, 7)
"""Sizes of equal slices, in GPCs, that `homogeneous-max` tries, as in the paper."""


EQUAL_GPCS: tuple[Size, ...] = (1, 2, 3, 4, 7)
"""Sizes of equal slices, in GPCs, that `paris` tries."""
SLO_FRACTIONS = (0.8, 0.65, 1.0)
"""Values of `within` that `paris` tries."""
DRAWN_PLANS = 4
"""Number of random plans that `paris` tries."""
MAX_SIZE_BUCKETS = 8
"""Number of ranges of request sizes in the integer program without segments."""


@dataclass(frozen=True)
class _Wish:
    """Slices that PARIS wants for one model, from the slowest slice type to the fastest."""

    speeds: Sequence[SliceSpeed]
    segments: Sequence[PlannedSegment]
    demands: Sequence[SizeDemand]


def plan_paris(problem: MigProblem, /, *, time_limit_s: float, progress: Progress) -> MigPlan:
    """Plan heterogeneous slices, each for the request sizes that suit it (PARIS), in at most `time_limit_s` seconds.

    With `segments: portfolio` several plans are made, the paper's and equal slices among them, and each is simulated
    with ELSA. Raises PlanningError if there is no plan.
    """
    if problem.segments != "portfolio":
        return _by_segments(problem, time_limit_s=time_limit_s, progress=progress)
    if all(model.slo_ms is None for model in problem.models):
        return _by_segments(_changed(problem, segments="knees"), time_limit_s=time_limit_s, progress=progress)
    fractions = [problem.within, *(fraction for fraction in SLO_FRACTIONS if fraction != problem.within)]
    by_slo = [_changed(problem, segments="slo", within=fraction) for fraction in fractions]
    candidates: dict[str, Candidate] = {
        f"segments by SLO, within {its.within:g}": partial(_by_segments, its) for its in by_slo
    }
    candidates["segments by knees"] = partial(_by_segments, _changed(problem, segments="knees"))
    candidates |= {f"equal slices of {size} GPCs": partial(_homogeneous, problem, size) for size in EQUAL_GPCS}
    candidates |= {f"all sizes, within {its.within:g}": partial(_by_sizes, its) for its in by_slo}
    candidates |= {
        f"random, seed {seed}": partial(plan_random, _changed(problem, seed=seed)) for seed in range(DRAWN_PLANS)
    }
    return best_plan(problem, candidates, time_limit_s=time_limit_s, progress=progress)


def _changed(problem: MigProblem, **changes: object) -> MigProblem:
    return problem.model_copy(update=changes)


def _by_segments(problem: MigProblem, *, time_limit_s: float, progress: Progress) -> MigPlan:
    """Algorithm 1."""
    offers = offers_of(problem)
    budget = Budget(problem, offers.slice_types, offers.usable)
    wishes = _wishes(problem, offers, budget.gpcs)
    wanted = {
        (number, speed.slice_type): segment.wanted
        for number, wish in enumerate(wishes)
        for speed, segment in zip(wish.speeds, wish.segments, strict=True)
    }
    demands = [demand for wish in wishes for demand in wish.demands]
    # N_k instances that are busy R_k seconds for each request: the instances that PARIS wants sustain this rate.
    most_rps = max(
        segment.wanted / (segment.work_s * model.weight)
        for model, wish in zip(problem.models, wishes, strict=True)
        for segment in wish.segments
        if segment.work_s > 0
    )
    counts = solve(
        problem, offers, demands, budget, wanted, most_rps=most_rps, time_limit_s=time_limit_s, progress=progress
    )
    return _plan_of(problem, offers.slice_types, counts, [wish.segments for wish in wishes])


def plan_homogeneous(problem: MigProblem, /, *, time_limit_s: float, progress: Progress) -> MigPlan:
    """Plan slices of one size, `problem.size`: as many as fit or use the GPCs.

    `time_limit_s`: seconds to search. Raises PlanningError if there is no plan.
    """
    if problem.size is None:
        raise PlanningError("size: `homogeneous` needs one: 1, 2, 3, 4 or 7 GPCs")
    return _homogeneous(problem, problem.size, time_limit_s=time_limit_s, progress=progress)


def plan_max(problem: MigProblem, /, *, time_limit_s: float, progress: Progress) -> MigPlan:
    """Plan with the best single size of slices, by load served on time.

    `time_limit_s`: seconds to search. Raises PlanningError if there is no plan.
    """
    plans: list[tuple[bool, MigPlan]] = []
    reasons = []
    for size in HOMOGENEOUS_GPCS:
        try:
            plan = _homogeneous(problem, size, time_limit_s=time_limit_s, progress=progress)
        except PlanningError as error:
            reasons.append(f"size {size}: {error}")
        else:
            plans.append((_is_on_time(problem, plan), plan))
    if not plans:
        raise PlanningError("; ".join(reasons))
    return max(plans, key=lambda rated: (rated[0], rated[1].objective))[1]


def plan_random(problem: MigProblem, /, *, time_limit_s: float, progress: Progress) -> MigPlan:
    """Plan random partitions that use the GPCs, from the problem's `seed`.

    `time_limit_s`: seconds to search. Raises PlanningError if there is no plan.
    """
    every = offers_of(problem)
    offers = every.only(set.intersection(*({speed.slice_type for speed in mine} for mine in every.speeds)))
    drawn = Budget(problem, offers.slice_types, offers.usable).draw(Random(problem.seed))
    demands = _anywhere(problem, offers)
    counts = share_out(problem, offers, demands, drawn, time_limit_s=time_limit_s, progress=progress)
    return _plan_of(problem, offers.slice_types, counts)


def _homogeneous(problem: MigProblem, size: Size, *, time_limit_s: float, progress: Progress) -> MigPlan:
    every = offers_of(problem)
    equal = [pool.geometry.plain(size) for pool in problem.gpus]
    sized = [number for number, slice_type in enumerate(every.slice_types) if slice_type.mig == equal[slice_type.pool]]
    if not sized:
        have = ", ".join(pool.product for pool in problem.gpus)
        raise PlanningError(f"size: {have} have no slices of {size} GPCs: give another size")
    offers = every.only(sized)
    for model, mine in zip(problem.models, offers.speeds, strict=True):
        if not mine:
            names = ", ".join(every.slice_types[number].name for number in sized)
            raise PlanningError(f"model {model.name!r}: it was not measured on {names}: measure it there")
    return _solved(problem, offers, _anywhere(problem, offers), time_limit_s=time_limit_s, progress=progress)


def _by_sizes(problem: MigProblem, *, time_limit_s: float, progress: Progress) -> MigPlan:
    """Slices that sustain the most load if every range of sizes may go to all slices on which it is on time."""
    offers = offers_of(problem)
    demands = []
    for number, (model, mine) in enumerate(zip(problem.models, offers.speeds, strict=True)):
        for segment in buckets(list(model.shares), MAX_SIZE_BUCKETS):
            limit_ms = None if model.slo_ms is None else model.slo_ms * problem.within
            on_time = [speed for speed in mine if limit_ms is None or speed.latency_ms(segment[1]) <= limit_ms]
            works_s = {
                speed.slice_type: work_s(model.shares, segment, speed.throughput_rps) for speed in on_time or mine[-1:]
            }
            demands.append(SizeDemand(number, works_s))
    return _solved(problem, offers, demands, time_limit_s=time_limit_s, progress=progress)


def _solved(
    problem: MigProblem, offers: SliceOffers, demands: Sequence[SizeDemand], *, time_limit_s: float, progress: Progress
) -> MigPlan:
    budget = Budget(problem, offers.slice_types, offers.usable)
    counts = solve(problem, offers, demands, budget, {}, time_limit_s=time_limit_s, progress=progress)
    return _plan_of(problem, offers.slice_types, counts)


def _wishes(problem: MigProblem, offers: SliceOffers, gpcs: int) -> list[_Wish]:
    """Algorithm 1 for every model, with one C for all of them."""
    slice_types, speeds = offers.slice_types, offers.speeds
    cut = [_segments(problem, model, mine) for model, mine in zip(problem.models, speeds, strict=True)]
    works = [
        [work_s(model.shares, rows, speed.throughput_rps) for speed, (_, _, rows) in zip(mine, segments, strict=True)]
        for model, mine, segments in zip(problem.models, speeds, cut, strict=True)
    ]
    sizes = [slice_types[speed.slice_type].gpcs for mine in speeds for speed in mine]
    weighted = [model.weight * work for model, mine in zip(problem.models, works, strict=True) for work in mine]
    wanted = iter(instances(sizes, weighted, gpcs))
    wishes = []
    for number, (model, mine, segments) in enumerate(zip(problem.models, speeds, cut, strict=True)):
        planned, demands = [], []
        for place_of, (speed, (knee, source, rows)) in enumerate(zip(mine, segments, strict=True)):
            planned.append(
                PlannedSegment(
                    slice_type=slice_types[speed.slice_type].name,
                    knee=knee,
                    knee_from=source,
                    rows=rows,
                    work_s=works[number][place_of],
                    wanted=next(wanted),
                )
            )
            larger = {each.slice_type: work_s(model.shares, rows, each.throughput_rps) for each in mine[place_of:]}
            if works[number][place_of] > 0:
                demands.append(SizeDemand(number, larger))
        wishes.append(_Wish(mine, planned, demands))
    return wishes


def _segments(
    problem: MigProblem, model: MigModel, speeds: Sequence[SliceSpeed]
) -> list[tuple[int, KneeSource, tuple[int, int]]]:
    """(B_k, its source, the segment) of every slice type. Raises PlanningError where large ones are always late."""
    knees: list[tuple[int, KneeSource]] = []
    most_rows = model.most_rows
    for speed in speeds:
        if problem.segments == "slo" and model.slo_ms is not None:
            knees.append((speed.most_rows_within(model.slo_ms * problem.within, most_rows), "slo"))
            continue
        knee, source = knee_of(speed.profile, utilization=problem.utilization, gain=problem.gain)
        on_time = most_rows if model.slo_ms is None else speed.most_rows_within(model.slo_ms, most_rows)
        knees.append((on_time, "slo") if on_time < knee else (knee, source))
    fastest_ms = speeds[-1].latency_ms(most_rows)
    if model.slo_ms is not None and fastest_ms > model.slo_ms:
        raise PlanningError(
            f"model {model.name!r}: {most_rows} rows take {fastest_ms:g} ms on its fastest slice, and its slo_ms is "
            f"{model.slo_ms:g}: a longer slo_ms, smaller requests, or larger slices"
        )
    segments = segments_of([knee for knee, _ in knees], most_rows)
    return [(knee, source, rows) for (knee, source), rows in zip(knees, segments, strict=True)]


def _anywhere(problem: MigProblem, offers: SliceOffers) -> list[SizeDemand]:
    """All requests of each model, on any slice type."""
    return [
        SizeDemand(
            number,
            {speed.slice_type: work_s(model.shares, (1, model.most_rows), speed.throughput_rps) for speed in mine},
        )
        for number, (model, mine) in enumerate(zip(problem.models, offers.speeds, strict=True))
    ]


def _is_on_time(problem: MigProblem, plan: MigPlan) -> bool:
    """Whether every model's largest requests are on time on each of its slices."""
    offers = offers_of(problem)
    for number, (model, planned) in enumerate(zip(problem.models, plan.models, strict=True)):
        speeds = offers.by_name(number)
        slowest_ms = max(speeds[name].latency_ms(model.most_rows) for name in planned.slices)
        if model.slo_ms is not None and slowest_ms > model.slo_ms:
            return False
    return True


def _plan_of(
    problem: MigProblem,
    slice_types: Sequence[SliceType],
    counts: SliceCounts,
    segments: Sequence[Sequence[PlannedSegment]] = (),
) -> MigPlan:
    models = tuple(
        PlannedModel(
            name=model.name,
            rate_rps=round(counts.load * model.weight, 3),
            slices={
                slice_type.name: count
                for place, slice_type in enumerate(slice_types)
                if (count := counts.slices.get((number, place), 0))
            },
            segments=tuple(segments[number]) if segments else (),
        )
        for number, model in enumerate(problem.models)
    )
    return MigPlan(
        objective=counts.load,
        bound=counts.bound,
        gpcs=sum(count * slice_types[slice_type].gpcs for (_, slice_type), count in counts.slices.items()),
        models=models,
        gpus=place(problem, slice_types, counts),
    )
