"""The plan of a layout change: instances to destroy and to create, their order, the cost, and whether it pays."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidegate.api import Plan
from tidegate.api.device import Mig, Slice
from tidegate.schemas import LayoutWorker
from tidegate.schemas.struct_field import DeviceField, SliceField

Amount = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PlannedStep(_Part):
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


class ChangeCost(_Part):
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
