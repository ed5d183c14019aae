"""The plan of a layout change: instances to destroy and to create, their order, the cost, and whether it pays."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tidegate.api import Plan, VersionedDocument
from tidegate.api.device import Mig, Slice
from tidegate.api.planner import DocumentSection
from tidegate.schemas import Layout, LayoutWorker, read_document
from tidegate.schemas.document import DeviceField, DocumentPath, SliceField
from tidegate_paris_elsa.problem import MigProblem

Amount = Annotated[float, Field(ge=0)]


class PlannedStep(DocumentSection):
    """One change of one GPU. Its other instances keep serving."""

    wave: int = Field(ge=0)
    """Wave of the step: steps of one wave run in parallel; the next wave starts when all are done."""
    device: DeviceField
    destroys: tuple[SliceField, ...]
    creates: tuple[SliceField, ...]
    stops: tuple[str, ...]
    """Workers of the current layout that are drained first and stopped."""
    starts: tuple[str, ...]
    """Workers of the new layout that serve after the step."""
    seconds: Amount


class ChangeCost(DocumentSection):
    """Cost of a change of the layout."""

    away_s: Amount
    """Lost capacity in seconds of a model's whole capacity, summed over all models."""
    destroyed: int = Field(ge=0)
    """Number of serving instances that are destroyed."""
    loads: int = Field(ge=0)
    """Number of models that are loaded into workers."""
    seconds: Amount
    """Duration of the change in seconds."""
    kept: Amount
    """Minimum fraction of any model's current or planned capacity, whichever is less, that serves during the change."""


class Reconfiguration(Plan):
    """Plan of a change of layout in steps. `objective`: seconds without capacity (`cost.away_s`); less is better."""

    kind: Literal["mig_reconfiguration"] = "mig_reconfiguration"
    cost: ChangeCost
    naive: ChangeCost
    """Cost of the same change GPU by GPU in the numbering of the planned layout, each repartitioned as a whole."""
    gained_rps: float | None
    """Additional requests per second that the planned layout sustains, of what clients send; None: a layout has no
    rates.
    """
    lost_requests: Amount | None
    """Number of requests that are lost during the change; None: a layout has no rates."""
    worth: bool | None
    """Whether more requests are gained within the horizon than lost; None: a layout has no rates."""
    horizon_s: Amount
    steps: tuple[PlannedStep, ...]
    workers: tuple[LayoutWorker, ...]
    """All workers of the new layout; those that stay keep their names."""

    @property
    def summary(self) -> str:
        """Cost and verdict in one line."""
        if not self.steps:
            return "nothing is to be changed: the planned layout serves already"
        cost, naive = self.cost, self.naive
        return (
            f"{self._verdict}; {len(self.steps)} steps, {cost.seconds:.0f} s, {cost.destroyed} instances destroyed, "
            f"{cost.loads} loads, at least {cost.kept:.0%} of every model's capacity serves, {cost.away_s:.1f} s of a "
            f"model's capacity away; GPU by GPU: {naive.seconds:.0f} s, {naive.destroyed} destroyed, {naive.loads} "
            f"loads, {naive.kept:.0%}, {naive.away_s:.1f} s"
        )

    @property
    def _verdict(self) -> str:
        if self.worth is None or self.gained_rps is None or self.lost_requests is None:
            return "whether it is worth it is not known: a layout says no rate_rps"
        gained = max(0.0, self.gained_rps * (self.horizon_s - self.cost.seconds))
        what = f"it gains {gained:,.0f} requests within {self.horizon_s:.0f} s and loses {self.lost_requests:,.0f}"
        return f"worth it: {what}" if self.worth else f"NOT worth its change: {what}"

    @property
    def table(self) -> list[dict[str, str]]:
        """One row for each step."""
        return [
            {
                "wave": str(step.wave),
                "GPU": f"{step.device.node}/{step.device.id}",
                "destroys": _named(step.destroys),
                "creates": _named(step.creates),
                "stops": ", ".join(step.stops) or "-",
                "starts": ", ".join(step.starts) or "-",
                "s": f"{step.seconds:.0f}",
            }
            for step in self.steps
        ]


def _named(parts: tuple[Slice, ...]) -> str:
    return ", ".join(f"{part.profile}@{part.start}" if isinstance(part, Mig) else repr(part) for part in parts) or "-"


Seconds = Annotated[float, Field(ge=0, lt=1e9)]


class ReconfigurationProblem(VersionedDocument):
    """Problem of `reconfigure`: the current and the target layout."""

    kind: Literal["mig_reconfiguration_problem"] = "mig_reconfiguration_problem"
    present: Layout | DocumentPath = Field(description="Current layout, or its path")
    planned: Layout | DocumentPath = Field(description="Target layout, or its path; its GPUs may be renumbered")
    keep: float = Field(
        default=0.5, ge=0, le=1, description="Fraction of each model's capacity that must serve throughout the change"
    )
    cut_s: Seconds = Field(default=5.0, description="Seconds to destroy instances and to create others in their place")
    load_s: Seconds | dict[str, Seconds] = Field(
        default=30.0, description="Seconds to load a model, one value or by model"
    )
    horizon_s: Seconds = Field(default=3600.0, description="Seconds for which the target layout is expected to serve")
    rates_rps: dict[str, Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="Request rate of each model; default: more than either layout sustains"
    )

    problem: MigProblem | DocumentPath | None = Field(
        default=None,
        description="Problem with the expected requests, or its path: each layout's sustained rates are computed for "
        "it; default: the rates in the layouts, which are comparable if they were planned for the same "
        "requests",
    )

    @cached_property
    def requests(self) -> MigProblem | None:
        """Planning problem that `problem` names; None without one. Raises DocumentError."""
        return read_document(Path(self.problem), MigProblem) if isinstance(self.problem, str) else self.problem

    @cached_property
    def layouts(self) -> tuple[Layout, Layout]:
        """Current and target layout. Raises DocumentError."""
        return _read(self.present), _read(self.planned)

    def load_time_s(self, model: str) -> float:
        """Return the load time of a model in seconds; the longest known one if it is not listed."""
        if isinstance(self.load_s, dict):
            return self.load_s.get(model, max(self.load_s.values(), default=0.0))
        return self.load_s


def _read(layout: Layout | str) -> Layout:
    return read_document(Path(layout), Layout) if isinstance(layout, str) else layout
