"""The plan: which pipelines each model has, with how many GPUs, and what they bear."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from tidegate.api import Plan
from tidegate_ppipe.columns import Column
from tidegate_ppipe.counts import Counts
from tidegate_ppipe.problem import PpipeProblem


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedPartition(_Part):
    """One pool of a pipeline."""

    blocks: tuple[int, int]
    """[first, end)"""
    gpu: str
    """The class."""
    share: int
    """So many workers on each GPU."""
    workers: int
    latency_us: float
    """Of one batch on one worker."""
    transfer_us: float
    """Of one batch to the next partition."""
    rate_rps: float
    """What the pool bears."""


class PlannedPipeline(_Part):
    """Partitions in order, with one batch size."""

    batch: int
    rate_rps: float
    """That of its slowest pool."""
    gather_us: float
    """How long a batch gathers."""
    partitions: tuple[PlannedPartition, ...]


class PlannedPipelines(_Part):
    """Of one model."""

    name: str
    rate_rps: float
    """All of its pipelines together."""
    normalised_rps: float
    """That, relative to its weight."""
    pipelines: tuple[PlannedPipeline, ...]


class PpipePlan(Plan):
    """Pooled pipelines. `objective`: for `throughput` the least normalised rate, in requests/s; else cost or watts."""

    kind: Literal["ppipe_plan"] = "ppipe_plan"
    goal: Literal["throughput", "cost", "power"]
    models: tuple[PlannedPipelines, ...]
    gpus: dict[str, int]
    """Of each class, those that are used."""

    @classmethod
    def of(cls, problem: PpipeProblem, columns: Sequence[Column], counts: Counts) -> Self:
        """The plan that gives each column its GPUs."""
        used: Counter[tuple[int, str, int]] = Counter()
        models = []
        for number, model in enumerate(problem.models):
            pipelines = []
            for index, column in enumerate(columns):
                if column.model != number or not counts.rates_rps[index] > 0:
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
                for partition in partitions:
                    used[number, partition.gpu, partition.share] += partition.workers
                pipelines.append(
                    PlannedPipeline(
                        batch=column.batch,
                        rate_rps=round(float(counts.rates_rps[index]), 3),
                        gather_us=round(column.gather_us, 1),
                        partitions=partitions,
                    )
                )
            rate_rps = sum(pipeline.rate_rps for pipeline in pipelines)
            models.append(
                PlannedPipelines(
                    name=model.name,
                    rate_rps=round(rate_rps, 3),
                    normalised_rps=round(rate_rps / model.weight, 3),
                    pipelines=tuple(pipelines),
                )
            )
        objective, bound = counts.objective, counts.bound
        if problem.objective == "throughput":
            objective = min(model.normalised_rps for model in models)
            bound = max(bound, objective)
        return cls(
            objective=objective,
            bound=bound,
            goal=problem.objective,
            models=tuple(models),
            gpus={
                gpu.name: sum(-(-workers // share) for (_, name, share), workers in used.items() if name == gpu.name)
                for gpu in problem.classes
            },
        )

    @property
    def summary(self) -> str:
        """The rates, and the GPUs that they take."""
        rates = ", ".join(f"{model.name} {model.rate_rps:,.0f}/s" for model in self.models)
        return f"{rates}; GPUs: {', '.join(f'{count} {name}' for name, count in self.gpus.items())}"

    @property
    def table(self) -> list[dict[str, str]]:
        """A row per partition."""
        return [
            {
                "model": model.name,
                "pipeline": str(number),
                "batch": str(pipeline.batch),
                "blocks": f"{partition.blocks[0]}-{partition.blocks[1]}",
                "GPU": partition.gpu if partition.share == 1 else f"{partition.gpu} / {partition.share}",
                "workers": str(partition.workers),
                "ms": f"{partition.latency_us / 1000:.2f}",
                "transfer ms": f"{partition.transfer_us / 1000:.2f}",
                "rate /s": f"{partition.rate_rps:,.1f}",
            }
            for model in self.models
            for number, pipeline in enumerate(model.pipelines)
            for partition in pipeline.partitions
        ]
