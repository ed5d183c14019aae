"""Planners: functions from a problem to a plan, both documents that people can read and diff.

Every planner has its own types of problem and plan; this module has their base classes.
"""

from abc import abstractmethod
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict


class PlanningError(Exception):
    """A planner found no plan; the message says why and names a remedy (which limit to relax, what to install)."""


class DocumentSection(BaseModel):
    """Base class of documents, their sections and options: unknown fields and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class VersionedDocument(DocumentSection):
    """Base class of versioned documents. Names of fields carry their unit."""

    version: Literal[1] = 1


class Plan(VersionedDocument):
    """Base class of a planner's result."""

    objective: float
    """The value that the planner minimizes or maximizes; the plan's docstring says which, and its unit."""
    bound: float | None
    """Bound on the objective of any plan; None if the planner does not know one."""

    @property
    def gap(self) -> float | None:
        """Relative distance of the objective from its bound; 0 for a plan that is proven optimal."""
        return None if self.bound is None else gap_between(self.objective, self.bound)

    @property
    @abstractmethod
    def summary(self) -> str:
        """Return the plan in one line of text."""

    @property
    @abstractmethod
    def table(self) -> list[dict[str, str]]:
        """Return the rows of the plan as {column: text}, all with the same columns."""


def gap_between(objective: float, bound: float) -> float:
    """Return the relative distance of an objective from its bound (0: equal); both in the same unit."""
    distance = abs(objective - bound)
    return distance / abs(objective) if distance > 0 and objective else distance


class Progress(Protocol):
    """Callback by which a planner reports progress; it returns the elapsed time in seconds. Planners read no clock."""

    def __call__(self, *, objective: float | None = None, bound: float | None = None) -> float:
        """Report the best objective and the best bound so far, as far as known; returns the seconds since the start."""


class Planner(Protocol):
    """A function from a problem, of the planner's own type, to a plan.

    It obeys `time_limit_s`, apart from set-up and clean-up, and returns the best plan found by then. Raises
    PlanningError if there is none.
    """

    def __call__(self, problem: Any, /, *, time_limit_s: float, progress: Progress) -> Plan:  # noqa: ANN401
        """Plan."""
