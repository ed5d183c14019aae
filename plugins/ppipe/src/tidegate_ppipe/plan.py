"""The plan: the pipelines of each model, with their GPUs and rates."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api import Plan
from tidegate.api.planner import DocumentSection

Rate = Annotated[float, Field(ge=0)]


class PlannedPartition(DocumentSection):
    """One pool of a pipeline in the plan."""

    blocks: tuple[int, int]
    """Blocks [first, end)."""
    gpu: str
    """Name of the GPU class."""
    share: int = Field(ge=1)
    """Number of workers on each GPU."""
    workers: int = Field(ge=1)
    latency_us: float = Field(gt=0)
    """Latency of a batch on one worker in microseconds."""
    transfer_us: float = Field(ge=0)
    """Transfer time of a batch to the next partition in microseconds."""
    rate_rps: Rate
    """Rate that the pool serves, in requests per second."""


class PlannedPipeline(DocumentSection):
    """A pipeline in the plan: partitions with one batch size."""

    batch: int = Field(ge=1)
    rate_rps: Rate
    """Requests per second of its slowest pool."""
    gather_us: float = Field(ge=0)
    """Time in microseconds for which a batch waits for more requests."""
    partitions: tuple[PlannedPartition, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _follows(self) -> Self:
        blocks = [part.blocks for part in self.partitions]
        ends = [0, *(end for _, end in blocks)]
        if any(not before == first < end for before, (first, end) in zip(ends, blocks, strict=False)):
            raise ValueError(
                f"partitions: the blocks {[list(each) for each in blocks]} do not follow each other from 0"
            )
        return self


class PlannedPipelines(DocumentSection):
    """The pipelines of one model in the plan."""

    name: str
    rate_rps: Rate
    """Rate of all its pipelines together, in requests per second."""
    normalized_rps: Rate
    """Rate divided by the model's weight."""
    pipelines: tuple[PlannedPipeline, ...]


class PpipePlan(Plan):
    """Plan of pooled pipelines.

    `objective`: least normalized rate in requests/s for `throughput`; otherwise cost or watts.
    """

    kind: Literal["ppipe_plan"] = "ppipe_plan"
    goal: Literal["throughput", "cost", "power"]
    models: tuple[PlannedPipelines, ...]
    gpus: dict[str, int]
    """Number of GPUs in use, by class."""

    @property
    def summary(self) -> str:
        """Rates and used GPUs in one line."""
        rates = ", ".join(f"{model.name} {model.rate_rps:,.0f}/s" for model in self.models)
        return f"{rates}; GPUs: {', '.join(f'{count} {name}' for name, count in self.gpus.items())}"

    @property
    def table(self) -> list[dict[str, str]]:
        """One row for each partition."""
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
