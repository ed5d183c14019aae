"""Observations: the input of a controller."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.api import Advise
from tidegate.schemas import Layout


@dataclass(frozen=True)
class ModelLoad:
    """Traffic of a model in a period, and its outcomes. A request counts when it ends, whatever its outcome."""

    rate_rps: float
    """Arrived requests per second."""
    rows_per_s: float
    """Rows of the arrived requests, per second."""
    largest_rows: int
    """Rows of the largest request so far; 0: there was none."""
    ended: int
    """Number of requests that ended, without those that clients cancelled."""
    attainment: float
    """Fraction of the ended requests that were answered on time; 1 if none ended."""


@dataclass(frozen=True)
class Observation:
    """Observation of the current layout over the period that ends now."""

    now_ns: int
    period_ns: int
    """Length of the period in ns: since the controller was last asked, or since the last change was done."""
    layout: Layout
    """The current layout."""
    models: Mapping[str, ModelLoad]
    """Load of each model of the layout, by name."""
    busy: Mapping[str, float]
    """Fraction of the period for which each worker of the layout ran stages, by name."""
    advice: Advise | None = None
    """Last recommendation of the policy in the period: the change of the number of its workers."""
    away: frozenset[str] = frozenset()
    """Names of workers of the layout that were lost and are not back yet."""

    @property
    def load(self) -> float:
        """Mean fraction of the period for which workers were busy."""
        return sum(self.busy.values()) / len(self.busy)

    @property
    def attainment(self) -> float:
        """Attainment of the worst model, 0 to 1."""
        return min(model.attainment for model in self.models.values())
