"""The plan: the MIG partition of every GPU, the model of each slice, and the numbers that PARIS wants."""

from typing import Annotated, Literal

from pydantic import Field

from tidegate.api import Plan
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import DeviceField
from tidegate_paris_elsa.slices import KneeSource

Amount = Annotated[float, Field(ge=0)]


class PlannedSegment(DocumentSection):
    """Number of slices of one slice type that PARIS wants for one model."""

    slice_type: str
    """Name of the slice type, e.g. `A100-40GB/3g.20gb`."""
    knee: int
    """Knee B_k: number of rows from which the slice is saturated."""
    knee_from: KneeSource
    rows: tuple[int, int]
    """Segment: first and last size of the requests it is meant for, in rows; empty if the last is less."""
    work_s: Amount
    """R_k: seconds of such a slice for each request of the model."""
    wanted: Amount
    """N_k: number of slices that PARIS wants, with fractions."""


class PlannedModel(DocumentSection):
    """A model in the plan, with its knees."""

    name: str
    rate_rps: Amount
    """Requests per second that its slices sustain."""
    slices: dict[str, int]
    """Number of its slices, by slice type."""
    segments: tuple[PlannedSegment, ...] = ()
    """Segments from the slowest slice type to the fastest; empty for planners without them."""


class PlannedSlice(DocumentSection):
    """A MIG instance in the plan."""

    profile: str
    start: int = Field(ge=0)
    """First memory slice."""
    model: str


class PlannedGpu(DocumentSection):
    """A GPU in the plan, with its instances."""

    device: DeviceField
    slices: tuple[PlannedSlice, ...] = Field(min_length=1)


class MigPlan(Plan):
    """Plan of MIG slices. `objective`: load in requests/s of every model relative to its weight; more is better."""

    kind: Literal["mig_plan"] = "mig_plan"
    gpcs: int
    """Number of GPCs in use."""
    method: str = ""
    """How the plan was found, where several were tried; "": as the planner says."""
    models: tuple[PlannedModel, ...]
    gpus: tuple[PlannedGpu, ...]

    @property
    def summary(self) -> str:
        """Rates and used GPUs in one line."""
        rates = ", ".join(f"{model.name} {model.rate_rps:,.0f}/s" for model in self.models)
        slices = sum(len(gpu.slices) for gpu in self.gpus)
        found = f", {self.method}" if self.method else ""
        return f"{rates}; {self.gpcs} GPCs in {slices} slices of {len(self.gpus)} GPUs{found}"

    @property
    def table(self) -> list[dict[str, str]]:
        """One row for each model and slice type."""
        rows = []
        for model in self.models:
            segments = {segment.slice_type: segment for segment in model.segments}
            for slice_type in [*segments, *(slice_type for slice_type in model.slices if slice_type not in segments)]:
                segment = segments.get(slice_type)
                rows.append(
                    {
                        "model": model.name,
                        "slices": slice_type,
                        "rows": _rows(segment),
                        "knee": "-" if segment is None else f"{segment.knee} by {segment.knee_from}",
                        "R ms": "-" if segment is None else f"{1000 * segment.work_s:.3f}",
                        "wanted": "-" if segment is None else f"{segment.wanted:.2f}",
                        "count": str(model.slices.get(slice_type, 0)),
                    }
                )
        return rows


def _rows(segment: PlannedSegment | None) -> str:
    if segment is None:
        return "any"
    first, last = segment.rows
    return f"{first}-{last}" if last >= first else "none"
