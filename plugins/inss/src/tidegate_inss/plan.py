"""The plan: the shares of every GPU, the models that run there, and the predicted rates."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidegate.api import Plan
from tidegate.schemas.struct_field import DeviceField

Amount = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PlannedShare(_Part):
    """A process of a model on a share of a GPU."""

    model: str
    units: int = Field(ge=1)
    """Size of the share in units, the granularity of MPS."""
    process: int = Field(default=0, ge=0)
    """Number of the process; shares of one GPU with the same number other than 0 are one process with serialized
    models.

    All of its models have the units of the process.
    """
    percent: int = Field(ge=1, le=100)
    """MPS percentage of the share, rounded up, so those of a GPU may exceed 100; their units do not."""
    batch: int = Field(ge=1)
    """Maximum batch size in rows."""
    batch_ms: Amount
    """Latency of a full batch beside its neighbors, in ms."""
    most_rps: Amount
    """Throughput with full batches one after the other, in requests per second."""


class PlannedGpu(_Part):
    """A GPU in the plan, with its shares."""

    device: DeviceField
    shares: tuple[PlannedShare, ...] = Field(min_length=1)


class PlannedModel(_Part):
    """A model in the plan, with all its shares."""

    name: str
    rate_rps: Amount
    """Arrival rate in requests per second."""
    most_rps: Amount
    """Throughput of its shares with full batches in requests per second; 0: no share."""
    bears_rps: Amount
    """Predicted rate in requests per second that its shares sustain before too many requests are late."""
    missing: str = ""
    """Why the model has no share, or too few; empty otherwise."""


class SharePlan(Plan):
    """Plan of MPS shares. `objective`: more is better.

    It is the least multiple of its rate that a model sustains, or, for a problem with the objective throughput, rows
    per second in full batches.
    """

    kind: Literal["share_plan"] = "share_plan"
    units_per_gpu: int
    models: tuple[PlannedModel, ...]
    gpus: tuple[PlannedGpu, ...]
    """GPUs with shares."""

    @property
    def throughput_rps(self) -> float:
        """Sum of the throughput of all shares with full batches: the paper's objective."""
        return sum(model.most_rps for model in self.models)

    @property
    def gpus_used(self) -> float:
        """Number of GPUs in use, with fractions."""
        units = 0
        for gpu in self.gpus:
            processes = {share.process or -number: share.units for number, share in enumerate(gpu.shares, start=1)}
            units += sum(processes.values())
        return units / self.units_per_gpu

    @property
    def bears(self) -> float:
        """Factor by which all rates could grow, as predicted."""
        return min(model.bears_rps / model.rate_rps for model in self.models)

    @property
    def summary(self) -> str:
        """Served rate, used GPUs and unserved models in one line."""
        shares = sum(len(gpu.shares) for gpu in self.gpus)
        missing = [f"{model.name}: {model.missing}" for model in self.models if model.missing]
        short = f"; not served as asked: {'; '.join(missing)}" if missing else ""
        if self.bears < 1 and not missing:
            least = min(self.models, key=lambda model: model.bears_rps / model.rate_rps)
            short = f"; too little, for {least.name!r} first: give more GPUs, more time, or fewer requests"
        return (
            f"sustains {self.bears:.2f} times the rates; {self.throughput_rps:,.0f} rows/s in full batches; "
            f"{shares} shares, {self.gpus_used:.2f} of {len(self.gpus)} GPUs{short}"
        )

    @property
    def table(self) -> list[dict[str, str]]:
        """One row for each share."""
        rates = {model.name: model.rate_rps for model in self.models}
        return [
            {
                "GPU": f"{gpu.device.node}/{gpu.device.id}",
                "model": share.model,
                "rate/s": f"{rates[share.model]:,.0f}",
                "percent": str(share.percent),
                "batch": str(share.batch),
                "batch ms": f"{share.batch_ms:.2f}",
                "rows/s": f"{share.most_rps:,.0f}",
            }
            for gpu in self.gpus
            for share in gpu.shares
        ]
