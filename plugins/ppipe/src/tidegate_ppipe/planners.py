"""The planners `ppipe`, `np` and `dart-r`: the same program over different pipelines (PPipe, sections 5.3 and 6.1)."""

from collections.abc import Callable, Sequence

from tidegate.api import PlanningError, Progress
from tidegate_ppipe.columns import Column, Tables, columns_of, fastest_us
from tidegate_ppipe.counts import Counts, solve
from tidegate_ppipe.plan import PpipePlan
from tidegate_ppipe.problem import PpipeProblem

GATHER_SHARE = 0.2
"""Of the time: to learn what whole models bear, which says how fast batches gather."""


def plan_ppipe(problem: PpipeProblem, /, *, time_limit_s: float, progress: Progress) -> PpipePlan:
    """Pooled pipelines of up to `max_partitions` partitions. Raises PlanningError and DocumentError."""
    return _plan(problem, time_limit_s, progress, _anything, partitions=problem.max_partitions)


def plan_np(problem: PpipeProblem, /, *, time_limit_s: float, progress: Progress) -> PpipePlan:
    """Whole models only: the same program without partitioning. Raises PlanningError and DocumentError."""
    return _plan(problem, time_limit_s, progress, _anything, partitions=1)


def plan_dart(problem: PpipeProblem, /, *, time_limit_s: float, progress: Progress) -> PpipePlan:
    """DART-r: chains of two GPUs of different classes, one of each, and whole models on GPUs that are left over.

    GPUs are not shared. Raises PlanningError and DocumentError.
    """
    return _plan(problem, time_limit_s, progress, _is_of_dart, partitions=2, paired=True)


def _anything(_gpus: Sequence[int], _shares: Sequence[int]) -> bool:
    return True


def _is_of_dart(gpus: Sequence[int], shares: Sequence[int]) -> bool:
    return set(shares) == {1} and len(set(gpus)) == len(gpus)


def _plan(
    problem: PpipeProblem,
    time_limit_s: float,
    progress: Progress,
    allowed: Callable[[Sequence[int], Sequence[int]], bool],
    *,
    partitions: int,
    paired: bool = False,
) -> PpipePlan:
    tables = [Tables(model, problem) for model in problem.models]
    _check_speed(problem, tables)
    gather_rps = _gather_rates(problem, tables, time_limit_s * GATHER_SHARE)
    columns: list[Column] = []
    for number, table in enumerate(tables):
        mine = columns_of(number, table, problem, gather_rps[number], partitions, allowed)
        if not mine:
            raise _too_slow(problem, number, table)
        columns += mine
        progress()
    left_s = max(0.2, time_limit_s - progress())
    counts = solve(problem, columns, paired=paired, time_limit_s=left_s)
    if counts is None or (problem.objective == "throughput" and not counts.objective > 0):
        raise _no_room(problem, columns, counts, time_limit_s)
    plan = PpipePlan.of(problem, columns, counts)
    progress(objective=plan.objective, bound=plan.bound)
    return plan


def _gather_rates(problem: PpipeProblem, tables: list[Tables], time_limit_s: float) -> list[float | None]:
    """How fast the requests of each model come when batches gather: what whole models would bear, if not given."""
    given = [model.batch_rate_rps for model in problem.models]
    if not problem.gather or all(given):
        return given
    if problem.objective != "throughput":
        return [rate or model.rate_rps for rate, model in zip(given, problem.models, strict=True)]
    columns = [column for number, table in enumerate(tables) for column in columns_of(number, table, problem, None, 1)]
    counts = solve(problem, columns, paired=False, time_limit_s=time_limit_s) if columns else None
    rates: list[float | None] = []
    for number, rate in enumerate(given):
        bears = (
            0.0
            if counts is None
            else sum(float(counts.rates_rps[index]) for index, column in enumerate(columns) if column.model == number)
        )
        # A model that does not fit whole anywhere gathers at what a tenth of a GPU-second each would bear: slowly.
        rates.append(rate or (bears if bears > 0 else 10.0))
    return rates


def _check_speed(problem: PpipeProblem, tables: list[Tables]) -> None:
    for model, table in zip(problem.models, tables, strict=True):
        if fastest_us(table, problem) is None:
            raise PlanningError(
                f"model {model.name!r}: its profile has no batch of 1 on any whole GPU of {_names(problem)}: "
                f"measure it there with `tidegate profile-blocks`"
            )


def _too_slow(problem: PpipeProblem, number: int, table: Tables) -> PlanningError:
    model = problem.models[number]
    fastest = fastest_us(table, problem) or 0.0
    budget_ms = model.slo_ms * (1 - problem.margin)
    if fastest / 1000 <= budget_ms:
        return PlanningError(
            f"model {model.name!r}: no pipeline fits a GPU's memory_mib within its SLO of {model.slo_ms:g} ms: "
            "more partitions, or more memory"
        )
    return PlanningError(
        f"model {model.name!r}: its SLO of {model.slo_ms:g} ms less the margin of {problem.margin:.0%} leaves "
        f"{budget_ms:.1f} ms, and a batch of 1 takes {fastest / 1000:.1f} ms on the fastest GPU: slo_ms of "
        f"{fastest / 1000 / (1 - problem.margin):.1f} would do, or a smaller margin"
    )


def _no_room(problem: PpipeProblem, columns: list[Column], counts: Counts | None, time_limit_s: float) -> PlanningError:
    if problem.objective == "throughput":
        gpus = sum(gpu.count for gpu in problem.classes)
        return PlanningError(
            f"{gpus} GPUs do not serve all {len(problem.models)} models at once: more GPUs, or fewer models"
            if counts is not None
            else f"found no plan in {time_limit_s:g} s: give more time"
        )
    needed = {
        model.name: min(
            float(model.rate_rps or 0) * float(column.gpus_per_rps(len(problem.classes)).sum())
            for column in columns
            if column.model == number
        )
        for number, model in enumerate(problem.models)
    }
    most = max(needed, key=lambda name: needed[name])
    return PlanningError(
        f"the GPUs do not bear the rates: {most!r} alone takes at least {needed[most]:.1f} GPUs, all models together "
        f"{sum(needed.values()):.1f}, and there are {sum(gpu.count for gpu in problem.classes)}: "
        "more GPUs, or a lower rate_rps"
    )


def _names(problem: PpipeProblem) -> str:
    return ", ".join(gpu.name for gpu in problem.classes)
