"""What a planner is: a function from a problem to a plan. Both are documents that people can read and diff.

Every planner has a problem and a plan of its own shape: what they share is here.
"""

from abc import abstractmethod
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict


class PlanningError(Exception):
    """There is no plan to give; the message says why and the remedy: which limit is too tight, what to install."""


class VersionedDocument(BaseModel):
    """A versioned document. Its fields carry their unit in their name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    version: Literal[1] = 1


class Plan(VersionedDocument):
    """What a planner answers."""

    objective: float
    """What the planner makes small or large; its docstring says what it is, and its unit."""
    bound: float | None
    """No plan has a better objective than this; None where the planner does not know."""

    @property
    def gap(self) -> float | None:
        """How far the objective may be from the best one, as a share of it: 0 for a plan that is proven best."""
        return None if self.bound is None else gap_between(self.objective, self.bound)

    @property
    @abstractmethod
    def summary(self) -> str:
        """The plan in a line."""

    @property
    @abstractmethod
    def table(self) -> list[dict[str, str]]:
        """The plan for people: rows, each {column: text}, all with the same columns."""


def gap_between(objective: float, bound: float) -> float:
    """How far an objective may be from the best one, as a share of it."""
    distance = abs(objective - bound)
    return distance / abs(objective) if distance > 0 and objective else distance


class Progress(Protocol):
    """How a planner says how far it is, and how it learns how late it is, since it holds no clock itself."""

    def __call__(self, *, objective: float | None = None, bound: float | None = None) -> float:
        """Report the best objective and the best bound so far, as far as known; returns the seconds since the start."""


class Planner(Protocol):
    """A function from a problem, of the planner's own type, to a plan.

    It keeps to the time limit but for what it needs to begin and to end, and answers with the best plan that it found
    by then. Raises PlanningError where it has none.
    """

    def __call__(self, problem: Any, /, *, time_limit_s: float, progress: Progress) -> Plan:  # noqa: ANN401
        """Plan."""
