"""The plan of a change: which instances go and come, in which order, what that costs, and whether it is worth it."""

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
    """Steps of one wave run side by side; the next wave begins when all of them are done."""
    device: DeviceField
    destroys: tuple[SliceField, ...]
    creates: tuple[SliceField, ...]
    stops: tuple[str, ...]
    """Workers of the present layout that are drained first, and serve no more."""
    starts: tuple[str, ...]
    """Workers of the new layout that serve once it is done."""
    seconds: Amount


class ChangeCost(_Part):
    """Cost of a change of the layout."""

    away_s: Amount
    """Seconds that all of a model's capacity would be away, or not yet there, all models together."""
    destroyed: int = Field(ge=0)
    """Instances that served and are destroyed."""
    loads: int = Field(ge=0)
    """Models that are loaded into workers."""
    seconds: Amount
    """From the beginning to the end."""
    kept: Amount
    """The least share of any model's capacity, present or planned, whichever is less, that serves meanwhile."""


class Reconfiguration(Plan):
    """Plan of a change of layout in steps. `objective`: seconds without capacity (`cost.away_s`); less is better."""

    kind: Literal["mig_reconfiguration"] = "mig_reconfiguration"
    cost: ChangeCost
    naive: ChangeCost
    """The same change GPU by GPU as the planned layout numbers them, each cut anew as a whole."""
    gained_rps: float | None
    """Requests per second that the planned layout bears more, of what clients ask; None: a layout says no rates."""
    lost_requests: Amount | None
    """Requests that are not borne while it is changed."""
    worth: bool | None
    """Whether it gains more requests within the horizon than are lost; None: a layout says no rates."""
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
