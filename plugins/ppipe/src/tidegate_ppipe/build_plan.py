"""From columns and numbers of workers to the plan."""

from collections.abc import Sequence

from tidegate_ppipe.column_search import ColumnCounts
from tidegate_ppipe.columns import Column
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
