"""Problem of the planners of MIG slices: GPUs, models, and sizes of requests."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api import PlanningError, VersionedDocument
from tidegate.api.planner import DocumentSection
from tidegate.schemas import (
    MIG_GEOMETRIES,
    Demand,
    DemandedModel,
    MigGeometry,
    ModelProfile,
    ProfileFileError,
    RequestSizes,
    mig_geometries,
    read_document,
    read_profiles,
)
from tidegate.schemas.document import DocumentPath, Name, Positive
from tidegate.schemas.validation_errors import check_each_once

Latency = Annotated[float, Field(ge=1e-4, lt=1e9)]
Amount = Annotated[float, Field(ge=0, lt=1e12)]
Rows = Annotated[int, Field(ge=1, le=65536)]
Size = Literal[1, 2, 3, 4, 7]


class GpuPool(DocumentSection):
    """A group of equal GPUs."""

    product: Name = Field(description="Product with its memory, e.g. `A100-40GB`, or the driver's name")
    count: int = Field(ge=1, le=100_000)
    per_node: int = Field(default=8, ge=1, description="GPUs of each machine")
    memory_mib: int | None = Field(
        default=None, ge=1, description="Memory of a GPU in MiB, if the product's name does not contain it"
    )

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        found = [geometry.product for geometry in mig_geometries(self.product, self.memory_mib)]
        if len(found) != 1:
            known = ", ".join(MIG_GEOMETRIES)
            raise ValueError(
                f"product: {self.product!r} may be {' or '.join(found)}: say which, or give memory_mib"
                if found
                else f"product: the MIG geometry of {self.product!r} is not known; known are {known}"
            )
        return self

    @cached_property
    def geometry(self) -> MigGeometry:
        """MIG geometry of the GPUs of the pool."""
        (geometry,) = mig_geometries(self.product, self.memory_mib)
        return geometry


class SliceProfile(DocumentSection):
    """Measured latency of a model on one slice type."""

    slice_type: Name = Field(description="MIG profile, `3g.20gb`, or with its product, `A100-40GB/3g.20gb`")
    rows: tuple[Rows, ...] = Field(min_length=1, description="Measured numbers of rows, ascending")
    latency_ms: tuple[Latency, ...] = Field(description="Latency in ms of a request with each of these numbers of rows")
    utilization: tuple[Amount, ...] | None = Field(
        default=None, description="Utilization of the slice's compute units, 0 to 1, e.g. DCGM's GR_ENGINE_ACTIVE"
    )

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if list(self.rows) != sorted(set(self.rows)):
            raise ValueError(f"rows: {list(self.rows)} do not rise")
        for name, values in (("latency_ms", self.latency_ms), ("utilization", self.utilization)):
            if values is not None and len(values) != len(self.rows):
                raise ValueError(
                    f"{name}: {len(values)} values for {len(self.rows)} numbers of rows: give one for each"
                )
        if self.utilization is not None and not max(self.utilization) > 0:
            raise ValueError("utilization: all of it is zero: measure it under load, or leave it out")
        return self


class MigModel(DocumentSection):
    """A model to serve on MIG slices."""

    name: Name
    slo_ms: Positive | None = Field(
        default=None, description="SLO; no slice is planned for rows that take longer on it"
    )
    weight: Positive = Field(
        default=1.0, description="Weight of the model in the load: rates are compared relative to it"
    )
    memory_mib: Positive | None = Field(default=None, description="Minimum memory of its slices in MiB")
    sizes: dict[Rows, Amount] | DocumentPath = Field(
        description="{rows: number of requests}, or the path of a file of `tidegate batch-histogram`"
    )
    profiles: tuple[SliceProfile, ...] | DocumentPath = Field(
        description="Measured profiles, or the path of a file of `tidegate profile`"
    )

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if isinstance(self.sizes, dict) and not sum(self.sizes.values()) > 0:
            raise ValueError(f"sizes: those of {self.name!r} sum to nothing: say how many requests have how many rows")
        if not isinstance(self.profiles, str):
            check_each_once("profiles", (profile.slice_type for profile in self.profiles))
        return self

    @cached_property
    def shares(self) -> dict[int, float]:
        """Fraction of requests by rows, ascending. Raises DocumentError, PlanningError."""
        sizes = self.sizes
        if isinstance(sizes, str):
            known = read_document(Path(sizes), RequestSizes).models
            if self.name not in known:
                raise PlanningError(f"{sizes}: knows nothing of model {self.name!r}, but of {', '.join(known)}")
            sizes = known[self.name]
        total = sum(sizes.values())
        return {rows: sizes[rows] / total for rows in sorted(sizes) if sizes[rows] > 0}

    @property
    def most_rows(self) -> int:
        """Rows of the largest requests."""
        return max(self.shares)

    @cached_property
    def measured(self) -> tuple[SliceProfile, ...]:
        """Profiles by slice type; medians for those of a file. Raises PlanningError.

        If only some shapes were measured on a slice type, each number of rows has the latency of the slowest of them.
        """
        if not isinstance(self.profiles, str):
            return self.profiles
        try:
            file = read_profiles(Path(self.profiles))
        except ProfileFileError as error:
            raise PlanningError(str(error)) from error
        by_slice_type: dict[str, list[ModelProfile]] = {}
        for profile in file.profiles:
            if profile.model == self.name:
                by_slice_type.setdefault(profile.device_class, []).append(profile)
        return tuple(filter(None, (_slowest(slice_type, mine) for slice_type, mine in by_slice_type.items())))


def _slowest(slice_type: str, profiles: Sequence[ModelProfile]) -> SliceProfile | None:
    """The profile without a shape, else the slowest of those with one; None where they have no rows in common."""
    chosen = [profile for profile in profiles if not profile.shape] or profiles
    tables = [{point.rows: point.median_ms for point in profile.points} for profile in chosen]
    rows = sorted(set.intersection(*map(set, tables)))
    latency_ms = tuple(max(table[each] for table in tables) for each in rows)
    return SliceProfile(slice_type=slice_type, rows=tuple(rows), latency_ms=latency_ms) if rows else None


class MigProblem(VersionedDocument):
    """Problem of the planners: GPUs, models, objective."""

    kind: Literal["mig_problem"] = "mig_problem"
    gpus: tuple[GpuPool, ...] = Field(min_length=1, max_length=6)
    models: tuple[MigModel, ...] = Field(min_length=1)
    gpcs: int | None = Field(
        default=None, ge=1, description="Number of GPCs to use exactly; default: all that slices can have"
    )
    segments: Literal["portfolio", "slo", "knees"] = Field(
        default="portfolio",
        description="Bound of the request sizes of a slice: the SLO, or the knee (the paper's); always the knee for "
        "models without an SLO. portfolio: both are tried, equal slices and others too, and the best in simulation "
        "is taken",
    )
    within: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="segments slo: maximum latency on a slice as a fraction of the SLO",
    )
    utilization: float = Field(
        default=0.8, gt=0, le=1, description="Knee by utilization: fraction of the slice's own maximum"
    )
    gain: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Knee without measured utilization: minimum gain in throughput of twice the rows",
    )
    size: Size | None = Field(default=None, description="GPCs of each slice, for the planner `homogeneous`")
    seed: int = Field(default=0, ge=0, description="Seed of the planner `heterogeneous-random`")
    gap: float = Field(
        default=0.001, ge=0, lt=1, description="Relative distance from the bound at which the search ends"
    )

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        check_each_once("gpus", (pool.product for pool in self.gpus))
        check_each_once("models", (model.name for model in self.models))
        return self


def problem_of(demand: Demand) -> MigProblem:
    """Return the problem with every GPU partitioned and every model by its rate.

    Raises PlanningError for missing profiles.
    """
    for product in demand.gpus:
        if len(found := mig_geometries(product, None)) != 1:
            names = " or ".join(geometry.product for geometry in found)
            may = f"it may be {names}: say which" if found else f"MIG is known for {', '.join(MIG_GEOMETRIES)}"
            raise PlanningError(f"{product!r} cannot be cut into MIG slices ({may})")
    return MigProblem(
        gpus=tuple(
            GpuPool(product=product, count=count, per_node=demand.per_node) for product, count in demand.gpus.items()
        ),
        models=tuple(
            MigModel(
                name=model.name,
                slo_ms=model.slo_ms,
                weight=model.rate_rps,
                sizes=dict(model.sizes),
                profiles=_measured(model, [*demand.gpus]),
            )
            for model in demand.models
        ),
    )


def _measured(model: DemandedModel, products: list[str]) -> tuple[SliceProfile, ...]:
    found = tuple(
        SliceProfile(slice_type=slice_type, rows=tuple(range(1, len(table) + 1)), latency_ms=table)
        for slice_type, table in model.latency_ms.items()
        if slice_type.partition("/")[0] in products and "/" in slice_type
    )
    if not found:
        raise PlanningError(
            f"{model.name!r} was not measured on slices of {products[0]}: add profiles by slice type, such as "
            f"{products[0]}/{mig_geometries(products[0], None)[0].profiles[0].name}, "
            "with `tidegate profile --device-class`"
        )
    return found
