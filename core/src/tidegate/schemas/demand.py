"""Demand: request rates of models and the available GPUs, from which planners derive their problems."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from tidegate.api import VersionedDocument
from tidegate.schemas.block_profile import BlockProfile
from tidegate.schemas.interference import InterferenceModel


@dataclass(frozen=True)
class DemandedModel:
    """A model to serve, with its request rate and SLO."""

    name: str
    slo_ms: float | None
    rate_rps: float
    """Mean requests per second."""
    max_batch: int
    """Largest batch in rows."""
    sizes: Mapping[int, float]
    """{rows: fraction of its requests with this many rows}."""
    latency_ms: Mapping[str, tuple[float, ...]]
    """Latency in ms of a batch of 1, 2, ... rows, by device class: `A100`, `A100-40GB/1g.5gb`."""
    blocks: BlockProfile | None = None
    """Latency of its blocks; None: the model was not split."""


@dataclass(frozen=True)
class Demand:
    """Models to serve, and the GPUs that may serve them."""

    models: tuple[DemandedModel, ...]
    gpus: Mapping[str, int]
    """Number of GPUs by product."""
    per_node: int = 8
    """Maximum number of GPUs of a machine."""
    interference: InterferenceModel | None = None
    """Interference of models that share a GPU; None: not measured."""
    gbps: float | None = None
    """Bandwidth of each machine's link in Gbit/s; None: transfers take no time."""


class RequestSizes(VersionedDocument):
    """Number of requests of each model by rows."""

    kind: Literal["request_sizes"] = "request_sizes"
    models: dict[str, dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]]] = Field(min_length=1)
    """{model: {rows: number or fraction of its requests}}."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for name, sizes in self.models.items():
            if not sum(sizes.values()) > 0:
                raise ValueError(
                    f"models: the sizes of {name!r} sum to nothing: say how many requests have how many rows"
                )
        return self


class Assignment(VersionedDocument):
    """The part of a plan that assigns models; other fields are ignored and may be missing."""

    model_config = ConfigDict(extra="ignore")
    kind: Literal["subclusters"] = "subclusters"
    assignment: dict[str, Annotated[int, Field(ge=0)]]
    """{model: number of its sub-cluster}."""
