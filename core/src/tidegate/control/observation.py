"""Observations: the input of a controller."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.api import Advise
from tidegate.schemas import Layout


@dataclass(frozen=True)
class ModelLoad:
    """Traffic of a model in a period, and its outcomes. A request counts when it ends, whatever its outcome."""

    rate_rps: float
    """Requests that came, per second."""
    rows_per_s: float
    """Their rows, per second: what `Layout` latencies are by."""
    largest_rows: int
    """The rows of the largest request that has ever come; 0: none has."""
    ended: int
    """How many requests ended; those whose clients left are not among them."""
    attainment: float
    """The share of these that were answered on time; 1 where none ended."""


@dataclass(frozen=True)
class Observation:
    """Observation of the current layout over the period that ends now."""

    now_ns: int
    period_ns: int
    """The length of the period: since the controller was asked last, or since the last change was done."""
    layout: Layout
    """The one that serves."""
    models: Mapping[str, ModelLoad]
    """Each model of the layout, by name."""
    busy: Mapping[str, float]
    """The share of the period for which each worker of the layout ran stages, by name."""
    advice: Advise | None = None
    """Last recommendation of the policy in the period: the change of the number of its workers."""
    away: frozenset[str] = frozenset()
    """The names of the layout's workers that are not there: lost, and not back yet."""

    @property
    def load(self) -> float:
        """Mean fraction of the period for which workers were busy."""
        return sum(self.busy.values()) / len(self.busy)

    @property
    def attainment(self) -> float:
        """Attainment of the worst model, 0 to 1."""
        return min(model.attainment for model in self.models.values())
