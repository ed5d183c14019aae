"""The planners `ppipe`, `np` and `dart-r`: the same program over different pipelines (PPipe, sections 5.3 and 6.1)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tidegate.api import PlanningError, Progress
from tidegate_ppipe.column_search import ColumnCounts, Infeasible, price, solve
from tidegate_ppipe.columns import Column, LatencyTables, columns_of
from tidegate_ppipe.division import can_divide
from tidegate_ppipe.infeasibility import check_columns, check_measured, no_room, too_high
from tidegate_ppipe.plan import PlannedPartition, PlannedPipeline, PlannedPipelines, PpipePlan
from tidegate_ppipe.problem import PpipeProblem
from tidegate_ppipe.rounding import gpus_of, rates_of


def build_plan(problem: PpipeProblem, columns: Sequence[Column], counts: ColumnCounts) -> PpipePlan:
    """Return the plan that gives each column its GPUs; `counts`: workers of each column."""
    gpus = gpus_of(columns, counts.workers)
    rates_rps = rates_of(columns, counts.workers)
    models = []
    for number, model in enumerate(problem.models):
        pipelines = []
        for index, column in enumerate(columns):
            if column.model != number or not rates_rps[index] > 0:
                continue
            partitions = tuple(
                PlannedPartition(
                    blocks=(part.first, part.last),
                    gpu=problem.classes[part.gpu].name,
                    share=part.share,
                    workers=workers,
                    latency_us=round(part.latency_us, 1),
                    transfer_us=round(part.transfer_us, 1),
                    rate_rps=round(part.rate_rps / part.share * workers, 3),
                )
                for part, workers in zip(column.parts, counts.workers[index], strict=True)
            )
            pipelines.append(
                PlannedPipeline(
                    batch=column.batch,
                    rate_rps=round(float(rates_rps[index]), 3),
                    gather_us=round(column.gather_us, 1),
                    partitions=partitions,
                )
            )
        rate_rps = sum(pipeline.rate_rps for pipeline in pipelines)
        models.append(
            PlannedPipelines(
                name=model.name,
                rate_rps=round(rate_rps, 3),
                normalized_rps=round(rate_rps / model.weight, 3),
                pipelines=tuple(pipelines),
            )
        )
    objective, bound = counts.objective, counts.bound
    if problem.objective == "throughput":
        objective = min(model.normalized_rps for model in models)
    if bound is not None:
        bound = max(bound, objective) if problem.objective == "throughput" else min(bound, objective)
    return PpipePlan(
        objective=objective,
        bound=bound,
        goal=problem.objective,
        models=tuple(models),
        gpus={gpu.name: gpus[number] for number, gpu in enumerate(problem.classes)},
    )


GATHER_SHARE = 0.2
"""Fraction of the time for planning whole models, whose rates determine how fast batches fill."""
SLOW_RPS = 10.0
"""Rate in requests per second at which batches fill of a model that fits whole on no GPU."""
COLUMNS_SHARE = 0.5
"""Fraction of the time after which longer pipelines that were not found are left out."""
EVERY_SHARE = 0.65
"""Fraction of the time after which the columns for parts of GPUs are used if those for whole GPUs are incomplete."""


def plan_ppipe(problem: PpipeProblem, /, *, time_limit_s: float, progress: Progress) -> PpipePlan:
    """Plan pooled pipelines of up to `max_partitions` partitions in `time_limit_s` seconds.

    Raises PlanningError if there is no plan, and DocumentError for an unusable profile.
    """
    return _plan(problem, time_limit_s, progress, _anything, partitions=problem.max_partitions)


def plan_np(problem: PpipeProblem, /, *, time_limit_s: float, progress: Progress) -> PpipePlan:
    """Plan with whole models only: the same program without partitioning, in `time_limit_s` seconds.

    Raises PlanningError if there is no plan, and DocumentError for an unusable profile.
    """
    return _plan(problem, time_limit_s, progress, _anything, partitions=1)


def plan_dart(problem: PpipeProblem, /, *, time_limit_s: float, progress: Progress) -> PpipePlan:
    """Plan with DART-r: pairs of GPUs of different classes, and whole models on the remaining GPUs.

    GPUs are not shared. `time_limit_s`: seconds to search. Raises PlanningError if there is no plan, and DocumentError
    for an unusable profile.
    """
    return _plan(problem, time_limit_s, progress, _is_of_dart, partitions=min(2, problem.max_partitions), paired=True)


def _anything(_gpus: Sequence[int], _shares: Sequence[int]) -> bool:
    return True


def _is_of_dart(gpus: Sequence[int], shares: Sequence[int]) -> bool:
    return set(shares) == {1} and len(set(gpus)) == len(gpus)


def _chained(column: Column) -> Column:
    """The slowest GPU of a chain sets its rate."""
    slowest = min(part.rate_rps for part in column.parts)
    return replace(column, parts=tuple(replace(part, rate_rps=slowest) for part in column.parts))


def _plan(
    problem: PpipeProblem,
    time_limit_s: float,
    progress: Progress,
    allowed: Callable[[Sequence[int], Sequence[int]], bool],
    *,
    partitions: int,
    paired: bool = False,
) -> PpipePlan:
    tables = [LatencyTables(model, problem) for model in problem.models]
    check_measured(problem, tables)
    gather_rps = _gather_rates(problem, tables, time_limit_s * GATHER_SHARE, progress)

    def listed(share: float, *, exact: bool) -> tuple[list[Column], bool]:
        """Return the columns, and whether all were listed when this share of the time was over."""
        found: list[Column] = []
        late = [False] * len(tables)
        begin_s = progress()
        for number, table in enumerate(tables):
            until_s = begin_s + (time_limit_s * share - begin_s) * (number + 1) / len(tables)

            def is_late(number: int = number, until_s: float = until_s) -> bool:
                late[number] = late[number] or progress() > until_s
                return late[number]

            rate_rps = gather_rps[number]
            found += columns_of(number, table, problem, rate_rps, partitions, allowed, exact=exact, is_late=is_late)
        return found, not any(late)

    exact = paired
    columns, is_complete = listed(COLUMNS_SHARE, exact=exact)
    if is_complete and not exact and can_divide(problem):
        every, exact = listed(EVERY_SHARE, exact=True)
        columns = every if exact else columns
    try:
        check_columns(problem, tables, columns)
        if paired:
            columns = [_chained(column) for column in columns]
        prices = price(problem, columns)
        if prices is None:
            raise too_high(problem, columns)
        counts = solve(
            problem, columns, prices, exact=exact, paired=paired, time_limit_s=time_limit_s, progress=progress
        )
        if isinstance(counts, Infeasible):
            raise no_room(problem, time_limit_s, proven=counts.proven)
    except PlanningError as error:
        if is_complete:
            raise
        raise PlanningError(
            f"the time limit of {time_limit_s:g} s is too short to list every pipeline; with those that were: {error}"
        ) from error
    plan = build_plan(problem, columns, counts if is_complete else replace(counts, bound=None))
    progress(objective=plan.objective, bound=plan.bound)
    return plan


def _gather_rates(
    problem: PpipeProblem, tables: list[LatencyTables], time_limit_s: float, progress: Progress
) -> list[float | None]:
    """How fast the requests of each model come when batches gather: what whole models would bear, if not given."""
    given = [model.batch_rate_rps for model in problem.models]
    if not problem.gather or all(given):
        return given
    if problem.objective != "throughput":
        return [rate or model.rate_rps for rate, model in zip(given, problem.models, strict=True)]
    wholes = {
        number: mine for number, table in enumerate(tables) if (mine := columns_of(number, table, problem, None, 1))
    }
    bears = dict.fromkeys(range(len(tables)), SLOW_RPS)
    bears |= _borne_whole(problem, wholes, time_limit_s, progress) if wholes else {}
    return [rate or bears[number] for number, rate in enumerate(given)]


def _borne_whole(
    problem: PpipeProblem, wholes: Mapping[int, list[Column]], time_limit_s: float, progress: Progress
) -> dict[int, float]:
    """Return the rate that GPUs running whole models would serve, in parts of GPUs if there are too few."""
    alone = problem.model_copy(update={"models": tuple(problem.models[number] for number in wholes)})
    columns = [replace(column, model=place) for place, mine in enumerate(wholes.values()) for column in mine]
    prices = price(alone, columns)
    assert prices is not None, "some load is always sustained"
    counts = solve(alone, columns, prices, exact=True, time_limit_s=time_limit_s, progress=progress)
    rates_rps = prices.rates_rps if isinstance(counts, Infeasible) else rates_of(columns, counts.workers)
    bears = dict.fromkeys(wholes, 0.0)
    numbers = list(wholes)
    for column, rate in zip(columns, rates_rps, strict=True):
        bears[numbers[column.model]] += float(rate)
    return bears
