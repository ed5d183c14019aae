"""The plan: which shares every GPU is divided into, what runs there, and what that is foretold to do."""

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
    """How much of the GPU it has, in what MPS rounds down to."""
    process: int = Field(default=0, ge=0)
    """Shares of one GPU with the same number but 0 are one process, whose models take turns; all have its units."""
    percent: int = Field(ge=1, le=100)
    """The same as MPS is told it. Rounded up each, so that those of a GPU may exceed 100; their units do not."""
    batch: int = Field(ge=1)
    """Its batches have no more rows."""
    batch_ms: Amount
    """Latency of a full batch beside its neighbors, in ms."""
    most_rps: Amount
    """Its throughput with full batches, one after the other."""


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
    """The throughput of its shares with full batches; 0: it has none."""
    bears_rps: Amount
    """How much may come, as far as is foretold, before too many are late."""
    missing: str = ""
    """Why it has no share, or not enough of them."""


class SharePlan(Plan):
    """GPUs in shares. More of the objective is better.

    It is so many times the rates as the model bears that bears least; or, of a problem whose objective is throughput,
    rows per second in full batches.
    """

    kind: Literal["share_plan"] = "share_plan"
    units_per_gpu: int
    models: tuple[PlannedModel, ...]
    gpus: tuple[PlannedGpu, ...]
    """All that have shares."""

    @property
    def throughput_rps(self) -> float:
        """Sum of the throughput of all shares with full batches: the paper's objective."""
        return sum(model.most_rps for model in self.models)

    @property
    def gpus_used(self) -> float:
        """Number of GPUs in use, in parts of GPUs."""
        units = 0
        for gpu in self.gpus:
            processes = {share.process or -number: share.units for number, share in enumerate(gpu.shares, start=1)}
            units += sum(processes.values())
        return units / self.units_per_gpu

    @property
    def bears(self) -> float:
        """Factor by which all rates could grow, by prediction."""
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
            f"bears {self.bears:.2f} times the rates; {self.throughput_rps:,.0f} rows/s in full batches; "
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
