"""The plan: the shares of every GPU, the models that run there, and the predicted rates; made of assigned shares."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tidegate.api import Plan, PlanningError
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import DeviceField
from tidegate_inss.prediction import AssignedShare, Predictor, borne_rps, by_gpu, why_not

Amount = Annotated[float, Field(ge=0)]


class PlannedShare(DocumentSection):
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


class PlannedGpu(DocumentSection):
    """A GPU in the plan, with its shares."""

    device: DeviceField
    shares: tuple[PlannedShare, ...] = Field(min_length=1)


class PlannedModel(DocumentSection):
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


def borne_by(predictor: Predictor, shares: Sequence[AssignedShare]) -> list[float]:
    """Return the rates that the shares of one GPU sustain while all are busy, with the best batches up to their
    maximum.

    Models of one process wait for a batch of each other; a model sustains a part in proportion to its rate. In requests
    per second.
    """
    tables, models = predictor.tables, predictor.problem.models
    full_ms = predictor.batch_ms(shares)
    rates = []
    for at, ((model, _, units, batch, process), taken_ms) in enumerate(zip(shares, full_ms, strict=True)):
        batches = np.arange(1, batch + 1)
        gpu_ms = tables.gpu_ms[model, units, 1 : batch + 1]
        slowed = (taken_ms - tables.transfer_ms[model, batch]) / tables.gpu_ms[model, units, batch]
        batch_ms = tables.transfer_ms[model, 1 : batch + 1] + gpu_ms * slowed
        others_ms = sum(
            ms for other, ms in enumerate(full_ms) if process and other != at and shares[other].process == process
        )
        rates.append(float(borne_rps(batches, batch_ms, models[model].slo_ms - others_ms).max()))
    for process in {share.process for share in shares} - {0}:
        members = [at for at, share in enumerate(shares) if share.process == process]
        busy = sum(models[shares[at].model].rate_rps / max(rates[at], 1e-9) for at in members)
        for at in members:
            rates[at] = models[shares[at].model].rate_rps / busy
    return rates


def build_plan(
    predictor: Predictor, shares: Sequence[AssignedShare], missing: Mapping[int, str], bound: float | None
) -> SharePlan:
    """Return the plan of these shares.

    `missing`: by model number, why a model has no share or too few. `bound`: bound of the objective; None: unknown.
    Raises PlanningError if no model has a share.
    """
    problem = predictor.problem
    if not shares:
        raise PlanningError("no model has a share: " + "; ".join(missing.values()))
    gpus = []
    most, borne = [0.0] * len(problem.models), [0.0] * len(problem.models)
    for device, mine in zip(problem.devices, by_gpu(shares, len(problem.devices)), strict=True):
        if not mine:
            continue
        wrong = why_not(mine, problem.units_per_gpu, device.memory_mib, [predictor.takes_mib(share) for share in mine])
        assert wrong is None, f"{device.node}/{device.id}: {wrong}"
        planned = []
        for share, taken_ms, rate in zip(mine, predictor.batch_ms(mine), borne_by(predictor, mine), strict=True):
            most_rps = 1000 * share.batch / taken_ms
            most[share.model] += most_rps
            borne[share.model] += rate
            planned.append(
                PlannedShare(
                    model=problem.models[share.model].name,
                    units=share.units,
                    percent=problem.percent(share.units),
                    process=share.process,
                    batch=share.batch,
                    batch_ms=taken_ms,
                    most_rps=most_rps,
                )
            )
        gpus.append(PlannedGpu(device=device, shares=tuple(planned)))
    models = [
        PlannedModel(
            name=model.name,
            rate_rps=model.rate_rps,
            most_rps=most[number],
            bears_rps=borne[number],
            missing=missing.get(number, ""),
        )
        for number, model in enumerate(problem.models)
    ]
    objective = min(model.bears_rps / model.rate_rps for model in models)
    if problem.objective == "throughput":
        objective, bound = sum(most), None
    units = problem.units_per_gpu
    return SharePlan(objective=objective, bound=bound, units_per_gpu=units, models=tuple(models), gpus=tuple(gpus))
