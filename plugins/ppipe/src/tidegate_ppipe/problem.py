"""The problem: GPUs, models and objective (PPipe, section 5.3, appendix A.2)."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from tidegate.api import PlanningError, VersionedDocument
from tidegate.api.planner import DocumentSection
from tidegate.schemas import BlockProfile, Demand, read_document
from tidegate.schemas.document import DocumentPath, Name, Positive
from tidegate.schemas.validation_errors import check_each_once


class GpuClass(DocumentSection):
    """A class of equal GPUs."""

    name: Name = Field(description="Device class, as in the block profiles")
    count: int = Field(ge=1, le=10_000_000)
    per_node: int = Field(default=1, ge=1, description="GPUs of each machine, which share its link")
    max_share: int = Field(default=4, ge=1, le=16, description="Maximum number of workers on a GPU, through MPS")
    memory_mib: Positive | None = Field(default=None, description="Memory of a GPU in MiB; default: unlimited")
    cost: Positive = Field(default=1.0, description="Cost of a GPU in any unit, for the objective `cost`")
    power_w: Positive = Field(default=1.0, description="Power of a GPU in watts, for the objective `power`")


class PlannedModel(DocumentSection):
    """A model to serve with pipelines."""

    name: Name
    slo_ms: Positive
    weight: Positive = Field(
        default=1.0, description="Weight of the model in the load: throughputs are compared relative to it"
    )
    rate_rps: Positive | None = Field(
        default=None, description="Requests per second to sustain, for the objectives cost and power"
    )
    profile: BlockProfile | DocumentPath = Field(description="Block profile of the model, or its path")
    batch_rate_rps: Positive | None = Field(
        default=None, description="Rate at which batches fill; default: the rate that whole models would sustain"
    )

    @property
    def blocks(self) -> BlockProfile:
        """Block profile of the model. Raises DocumentError if its file cannot be used."""
        return (
            self.profile if isinstance(self.profile, BlockProfile) else read_document(Path(self.profile), BlockProfile)
        )


WHOLE_MARGIN = 0.1
"""SLO margin of whole models, as a fraction: more is wasted (docs/results/ppipe.md).

The paper has one margin for all.
"""


class PpipeProblem(VersionedDocument):
    """Problem of the planners: GPU classes, models, objective."""

    kind: Literal["ppipe_problem"] = "ppipe_problem"
    classes: tuple[GpuClass, ...] = Field(min_length=1, max_length=6)
    models: tuple[PlannedModel, ...] = Field(min_length=1)
    gbps: Positive | None = Field(
        default=None, description="Bandwidth of each node's link in Gbit/s; default: transfers take no time"
    )
    margin: float = Field(default=0.4, ge=0, lt=1, description="Fraction of the SLO reserved for waiting")
    whole_margin: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description=f"The same for whole models, which wait once; default: {WHOLE_MARGIN:g}, or `margin` if that is "
        "less",
    )
    gather: float = Field(
        default=1.3, ge=0, le=10, description="Factor on (b - 1) / rate, the time in which a batch of b rows fills"
    )
    max_partitions: int = Field(default=3, ge=1, le=3)
    max_batch: int = Field(default=8, ge=1, le=256)
    objective: Literal["throughput", "cost", "power"] = "throughput"
    gap: float = Field(
        default=0.005, ge=0, lt=1, description="Relative distance from the bound at which the search ends"
    )

    def margin_of(self, partitions: int) -> float:
        """Return the SLO margin of a pipeline with this many partitions, as a fraction of the SLO."""
        if partitions > 1:
            return self.margin
        return min(self.margin, WHOLE_MARGIN) if self.whole_margin is None else self.whole_margin

    @property
    def least_margin(self) -> float:
        """Smallest margin of any pipeline, as a fraction of the SLO."""
        return min(map(self.margin_of, range(1, self.max_partitions + 1)))

    @property
    def prices(self) -> tuple[float, ...]:
        """Weight of a GPU of each class in the objective: cost or watts."""
        return tuple(gpu.cost if self.objective == "cost" else gpu.power_w for gpu in self.classes)

    @property
    def gpus(self) -> int:
        """Number of GPUs of all classes."""
        return sum(gpu.count for gpu in self.classes)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        check_each_once("classes", (gpu.name for gpu in self.classes))
        check_each_once("models", (model.name for model in self.models))
        for model in self.models:
            if self.objective != "throughput" and model.rate_rps is None:
                raise ValueError(f"models: {model.name!r} needs a rate_rps: the objective is least {self.objective}")
            kinds = model.profile.kinds if isinstance(model.profile, BlockProfile) else ()
            if kinds and not set(kinds) & {gpu.name for gpu in self.classes}:
                raise ValueError(
                    f"models: the profile of {model.name!r} is of {', '.join(kinds)}: none is a class of this problem"
                )
        return self


MAX_CLASSES = 6
"""Maximum number of GPU classes of a problem."""


def problem_of(demand: Demand) -> PpipeProblem:
    """Return the problem with every GPU and every model, weighted by rate.

    Raises PlanningError for missing profiles.
    """
    uncut = [model.name for model in demand.models if model.blocks is None]
    if uncut:
        raise PlanningError(
            f"{uncut[0]!r} has no block profile: cut it with `tidegate split`, measure it with `tidegate "
            f"profile-blocks`, and give --blocks {uncut[0]}=FILE"
        )
    if len(demand.gpus) > MAX_CLASSES:
        raise PlanningError(f"there are {len(demand.gpus)} kinds of GPU, and it plans for at most {MAX_CLASSES}")
    planned = []
    for model in demand.models:
        blocks = model.blocks
        assert blocks is not None, "checked above"
        if model.slo_ms is None:
            raise PlanningError(f"{model.name!r} has no SLO: give it slo_ms")
        _check(blocks, demand)
        planned.append(PlannedModel(name=model.name, slo_ms=model.slo_ms, weight=model.rate_rps, profile=blocks))
    shares = {
        device_class: max(_shares(blocks, device_class) for blocks in _of(demand)) for device_class in demand.gpus
    }
    return PpipeProblem(
        classes=tuple(
            GpuClass(name=device_class, count=count, per_node=demand.per_node, max_share=shares[device_class])
            for device_class, count in demand.gpus.items()
        ),
        models=tuple(planned),
        gbps=demand.gbps,
    )


def _of(demand: Demand) -> list[BlockProfile]:
    return [model.blocks for model in demand.models if model.blocks is not None]


def _shares(blocks: BlockProfile, device_class: str) -> int:
    """Into how many shares GPUs of a kind were divided when it was measured."""
    return max(table.share for table in blocks.latencies if table.device_class == device_class)


def _check(blocks: BlockProfile, demand: Demand) -> None:
    known = {table.device_class for table in blocks.latencies}
    if lacking := [device_class for device_class in demand.gpus if device_class not in known]:
        raise PlanningError(
            f"the block profile of {blocks.model!r} has nothing of {lacking[0]!r}: measure it there with `tidegate "
            "profile-blocks --device-class`"
        )
