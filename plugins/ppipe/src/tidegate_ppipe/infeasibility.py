"""Explanation of infeasible problems: the model, the limit, and a sufficient value."""

from collections import Counter
from collections.abc import Sequence

from tidegate.api import PlanningError
from tidegate_ppipe.column_search import price
from tidegate_ppipe.columns import Column, LatencyTables, times_us
from tidegate_ppipe.problem import PlannedModel, PpipeProblem
from tidegate_ppipe.rounding import gpus_of


def check_measured(problem: PpipeProblem, tables: Sequence[LatencyTables]) -> None:
    """Raise PlanningError for a model without a usable measurement on these GPUs."""
    for model, table in zip(problem.models, tables, strict=True):
        if not times_us(table, problem):
            raise PlanningError(
                f"model {model.name!r}: its profile has no batch of 1 on a whole GPU of any of {_names(problem)}: "
                f"measure it there with `tidegate profile-blocks`"
            )


def check_columns(problem: PpipeProblem, tables: Sequence[LatencyTables], columns: Sequence[Column]) -> None:
    """Raise PlanningError if a model has no column, or if one worker for each pool already takes too many GPUs."""
    ones: list[list[Counter[int]]] = [[] for _ in problem.models]
    alike = {(column.model, tuple((part.gpu, part.share) for part in column.parts)): column for column in columns}
    for column in alike.values():
        ones[column.model].append(gpus_of([column], [[1] * len(column.parts)]))
    for model, table, mine in zip(problem.models, tables, ones, strict=True):
        if not mine:
            raise _too_slow(problem, model, table) or _too_large(problem, model, table)
        if all(_lacks(problem, gpus) for gpus in mine):
            number, needed = min((_lacks(problem, gpus) or (0, 0) for gpus in mine), key=lambda lack: lack[1])
            name, count = problem.classes[number].name, problem.classes[number].count
            raise PlanningError(
                f"model {model.name!r}: every pipeline of it takes more GPUs than there are: at least {needed} of "
                f"class {name!r}, whose count is {count}: more of them, more partitions, or more memory_mib"
            )
    for number, gpu in enumerate(problem.classes):
        least = [min(gpus[number] for gpus in mine) for mine in ones]
        if sum(least) > gpu.count:
            wanted = [f"{model.name!r} {count}" for model, count in zip(problem.models, least, strict=True) if count]
            raise PlanningError(
                f"class {gpu.name!r} has a count of {gpu.count}, and no two models share a GPU: at least "
                f"{', '.join(wanted)} are needed for any pipeline that meets the SLO: more of them, fewer models, or "
                "longer SLOs"
            )


def too_high(problem: PpipeProblem, columns: Sequence[Column]) -> PlanningError:
    """Return the error for rates that all GPUs together cannot serve."""
    loads = [model.model_copy(update={"weight": model.rate_rps}) for model in problem.models]
    borne = price(problem.model_copy(update={"objective": "throughput", "models": tuple(loads)}), columns)
    assert borne is not None, "some load is always sustained"
    gpus = [0.0] * len(problem.models)
    for column, rate in zip(columns, borne.rates_rps, strict=True):
        gpus[column.model] += float(rate * column.gpus_per_rps(len(problem.classes)).sum()) / borne.objective
    most = max(range(len(gpus)), key=gpus.__getitem__)
    return PlanningError(
        f"the {problem.gpus} GPUs bear {borne.objective:.0%} of the rates at most; most is for "
        f"{problem.models[most].name!r}, {gpus[most]:.1f} GPUs for a rate_rps of {problem.models[most].rate_rps:g}: "
        f"a lower rate_rps, or more GPUs, best of class {problem.classes[borne.scarce].name!r}"
    )


def no_room(problem: PpipeProblem, time_limit_s: float, *, proven: bool) -> PlanningError:
    """Return the error for a search of `time_limit_s` seconds that found no whole numbers of GPUs.

    `proven`: whether it proved that there are none.
    """
    if not proven:
        return PlanningError(
            f"parts of the {problem.gpus} GPUs would do, but in {time_limit_s:g} s no plan of whole ones was found, "
            "nor a proof that there is none: give more time, or more GPUs"
        )
    have = ", ".join(f"{gpu.count} {gpu.name}" for gpu in problem.classes)
    return PlanningError(
        f"{have}: too few, as no two models share a GPU: more GPUs, or fewer models"
        if problem.objective == "throughput"
        else f"{have}: they bear the rates in parts of GPUs, and whole ones do not: a lower rate_rps, or one more GPU"
    )


def _lacks(problem: PpipeProblem, gpus: Counter[int]) -> tuple[int, int] | None:
    """A class that has fewer GPUs, by its index, and how many are needed."""
    return next(((number, count) for number, count in gpus.items() if count > problem.classes[number].count), None)


def _too_slow(problem: PpipeProblem, model: PlannedModel, table: LatencyTables) -> PlanningError | None:
    fastest_ms = min(times_us(table, problem).values()) / 1000
    budget_ms = model.slo_ms * (1 - problem.least_margin)
    if fastest_ms <= budget_ms:
        return None
    return PlanningError(
        f"model {model.name!r}: its SLO of {model.slo_ms:g} ms less the margin of {problem.least_margin:.0%} leaves "
        f"{budget_ms:.1f} ms, and a batch of 1 takes {fastest_ms:.1f} ms on the fastest GPU: slo_ms of "
        f"{fastest_ms / (1 - problem.least_margin):.1f} would do, or a smaller margin"
    )


def _too_large(problem: PpipeProblem, model: PlannedModel, table: LatencyTables) -> PlanningError:
    budget_us = model.slo_ms * 1000 * (1 - problem.least_margin)
    quick = [problem.classes[gpu] for gpu, time_us in times_us(table, problem).items() if time_us <= budget_us]
    largest = max(quick, key=lambda gpu: gpu.memory_mib or 0.0)
    return PlanningError(
        f"model {model.name!r}: its blocks take {table.memory[-1]:.0f} MiB; of the classes that meet its SLO of "
        f"{model.slo_ms:g} ms with the whole model, {largest.name!r} has the largest memory_mib, "
        f"{largest.memory_mib or 0:g}, and no split that was allowed meets it: more memory, a longer slo_ms, or more "
        "partitions"
    )


def _names(problem: PpipeProblem) -> str:
    return ", ".join(gpu.name for gpu in problem.classes)
