"""The demand: which models are asked for how often, and on which GPUs. Planners make their problems out of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.schemas.block_profile import BlockProfile
from tidegate.schemas.interference import InterferenceModel


@dataclass(frozen=True)
class DemandedModel:
    """A model to serve, with its request rate and SLO."""

    name: str
    slo_ms: float | None
    rate_rps: float
    """Requests per second, mean."""
    max_batch: int
    """The largest batch, in rows."""
    sizes: Mapping[int, float]
    """{rows: the share of its requests that have so many}."""
    latency_ms: Mapping[str, tuple[float, ...]]
    """Milliseconds of a batch of 1, 2, ... rows, by kind of worker: `A100`, `A100-40GB/1g.5gb`."""
    blocks: BlockProfile | None = None
    """How long its blocks run; None: it was not cut."""


@dataclass(frozen=True)
class Demand:
    """Models to serve, and the GPUs that may serve them."""

    models: tuple[DemandedModel, ...]
    gpus: Mapping[str, int]
    """How many there are, by product."""
    per_node: int = 8
    """GPUs of a machine, at most."""
    interference: InterferenceModel | None = None
    """How models slow each other down that share a GPU; None: that was not measured."""
    gbps: float | None = None
    """The rate of each machine's link; None: transfers take no time."""
