"""Problem of the planners of MPS shares: GPUs, models, rates and SLOs."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tidegate.api import PlanningError, VersionedDocument
from tidegate.api.planner import DocumentSection
from tidegate.schemas import Demand, Device, DocumentError, InterferenceModel, Tenant, read_document
from tidegate.schemas.document import DocumentPath, Name
from tidegate.schemas.validation_errors import check_each_once

Positive = Annotated[float, Field(gt=0, lt=1e9)]
Memory = Annotated[float, Field(ge=0, lt=1e9)]

_DERIVED = {"measured": {"interference"}, "units_per_gpu": {"interference", "units"}, "devices": {"gpus"}}
"""Properties that a problem keeps once they are known, and the fields that they follow from."""
MULTIPROCESSOR_PAIRS = {"V100": 40, "A100": 54, "A30": 28, "H100": 66, "H200": 66}
"""Pairs of multiprocessors by product: the granularity of MPS shares."""


class GpuPool(DocumentSection):
    """A group of equal GPUs."""

    product: Name = Field(description="Product as the interference file names it, e.g. `V100`")
    count: int = Field(ge=1, le=10_000)
    memory_mib: int | None = Field(default=None, ge=1, description="Memory of each GPU in MiB; default: not checked")
    per_node: int = Field(default=8, ge=1, description="GPUs of each machine")


class SharingTenant(DocumentSection):
    """A model to serve, by its name in the interference file."""

    name: Name
    rate_rps: Positive = Field(description="Requests per second, with independent arrivals (Poisson)")
    slo_ms: Positive = Field(description="Time from arrival within which a request should be answered")
    max_batch: int = Field(default=32, ge=1, le=1024, description="Maximum batch size in rows")
    memory_mib: Memory = Field(default=0.0, description="Memory of each process in MiB, independent of the batch size")
    memory_per_row_mib: Memory = Field(default=0.0, description="Additional memory in MiB for each row of its batches")

    def takes_mib(self, batch: int) -> float:
        """Return the device memory, in MiB, of a process with batches of `batch` rows."""
        return self.memory_mib + self.memory_per_row_mib * batch


class ShareProblem(VersionedDocument):
    """Problem of the planners: GPUs, models, interference."""

    kind: Literal["share_problem"] = "share_problem"
    gpus: tuple[GpuPool, ...] = Field(min_length=1, max_length=20)
    interference: InterferenceModel | DocumentPath = Field(
        description="Interference file of `tidegate fit-interference`, or its path"
    )
    models: tuple[SharingTenant, ...] = Field(min_length=1, max_length=10_000)
    objective: Literal["load", "throughput"] = Field(
        default="load",
        description="Use of spare capacity: the largest multiple of all rates (load); or, once the rates are "
        "sustained, rows in full batches (throughput, the paper's)",
    )
    units: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Number of equal parts into which MPS can divide a GPU; default: by product",
    )

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        check_each_once("models", (model.name for model in self.models), "give each a name of its own")
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return the problem with other fields; derived values are recomputed."""
        copied = super().model_copy(update=update, deep=deep)
        for name, fields in _DERIVED.items():
            if fields & set(update or ()):
                copied.__dict__.pop(name, None)
        return copied

    @cached_property
    def measured(self) -> InterferenceModel:
        """Interference model of the problem. Raises PlanningError if the file cannot be read."""
        if isinstance(self.interference, InterferenceModel):
            return self.interference
        try:
            return read_document(Path(self.interference), InterferenceModel)
        except DocumentError as error:
            raise PlanningError(f"interference: {error}") from error

    @cached_property
    def units_per_gpu(self) -> int:
        """Number of MPS units of a GPU. Raises PlanningError if unknown."""
        units = self.units or MULTIPROCESSOR_PAIRS.get(self.measured.gpu.split("/")[0].split("-")[0])
        if units is None or (self.units is None and "/" in self.measured.gpu):
            raise PlanningError(
                f"units: into how many parts MPS divides a {self.measured.gpu!r} is not known: give half the number of "
                f"its multiprocessors; known are {', '.join(MULTIPROCESSOR_PAIRS)}"
            )
        return units

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """All GPUs, numbered by pool and machine."""
        devices: list[Device] = []
        node = 0
        for pool in self.gpus:
            for number in range(pool.count):
                where = f"node{node + number // pool.per_node}"
                devices.append(Device(where, number % pool.per_node, pool.product, pool.memory_mib))
            node += -(-pool.count // pool.per_node)
        return tuple(devices)

    def percent(self, units: int) -> int:
        """Return the least MPS percentage for this many units."""
        return -(-100 * units // self.units_per_gpu)

    def check(self) -> None:
        """Raise PlanningError, with the model and a remedy, for a problem that no plan can solve."""
        measured, units = self.measured, self.units_per_gpu
        for pool in self.gpus:
            if pool.product != measured.gpu:
                raise PlanningError(
                    f"gpus: the interference file was measured on {measured.gpu!r}, not on {pool.product!r}: give the "
                    "GPUs that name, or measure those (tidegate profile-shares)"
                )
        if lacking := measured.lacks(model.name for model in self.models):
            raise PlanningError(
                f"models: the interference file knows nothing of {lacking[0]!r}: measure it (tidegate profile-shares), "
                f"or name one of {', '.join(sorted(measured.models))}"
            )
        roomiest = max((pool.memory_mib or float("inf") for pool in self.gpus), default=0.0)
        for model in self.models:
            alone_ms = measured.alone(Tenant(model.name, 1, 100)).taken_ms
            if alone_ms > model.slo_ms:
                raise PlanningError(
                    f"models: {model.name!r} takes {alone_ms:.3g} ms for one row on a whole {measured.gpu}, more than "
                    f"its SLO of {model.slo_ms:g} ms: give it more time, or serve it on a faster GPU"
                )
            if model.takes_mib(1) > roomiest:
                raise PlanningError(
                    f"models: {model.name!r} takes {model.takes_mib(1):.0f} MiB with one row, and no GPU has more than "
                    f"{roomiest:.0f}: give it a larger one"
                )
        room = units * len(self.devices)
        if len(self.models) > room:
            raise PlanningError(
                f"models: {len(self.models)} of them on {len(self.devices)} GPUs of {units} units each: the share "
                "of a model would round to nothing: give more GPUs, or fewer models"
            )


def problem_of(demand: Demand) -> ShareProblem:
    """Return the problem with every GPU of the measured product and every model of the demand.

    Raises PlanningError for missing profiles or a missing interference file.
    """
    measured = demand.interference
    if measured is None:
        raise PlanningError(
            "how models slow each other down on one GPU was not measured: fit that with `tidegate fit-interference` "
            "and give --interference FILE"
        )
    if others := [product for product in demand.gpus if product != measured.gpu]:
        raise PlanningError(
            f"interference was measured on {measured.gpu!r}, and there are {others[0]!r}: measure it there, too"
        )
    if lacking := measured.lacks(model.name for model in demand.models):
        raise PlanningError(
            f"the interference file knows nothing of {lacking[0]!r}: measure it with `tidegate profile-shares`"
        )
    tenants = []
    for model in demand.models:
        if model.slo_ms is None:
            raise PlanningError(f"{model.name!r} has no SLO: give it slo_ms")
        tenants.append(
            SharingTenant(
                name=model.name, rate_rps=model.rate_rps, slo_ms=model.slo_ms, max_batch=min(model.max_batch, 1024)
            )
        )
    pools = (GpuPool(product=product, count=count, per_node=demand.per_node) for product, count in demand.gpus.items())
    return ShareProblem(gpus=tuple(pools), interference=measured, models=tuple(tenants))
