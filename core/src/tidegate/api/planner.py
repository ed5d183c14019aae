"""What a planner is: a function from a problem to a plan. Both are documents that people can read and diff.

Every planner has a problem and a plan of its own shape: what they share is here.
"""

import json
from abc import abstractmethod
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError


class PlanningError(Exception):
    """There is no plan to give; the message says why and the remedy: which limit is too tight, what to install."""


class DocumentError(Exception):
    """A problem or a plan that cannot be used; the message names file, field and remedy."""


class Document(BaseModel):
    """A versioned document. Its fields carry their unit in their name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    version: Literal[1] = 1


class Plan(Document):
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


D = TypeVar("D", bound=Document)


def read_document(path: Path, kind: type[D]) -> D:
    """Read a problem or a plan: JSON, or YAML in a file named so. Raises DocumentError."""
    try:
        return kind.model_validate(_parse(path))
    except ValidationError as error:
        wrong = "\n".join(
            f"  {'.'.join(map(str, e['loc'])) or 'document'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()[:8]
        )
        fields = ", ".join(kind.model_fields)
        raise DocumentError(f"{path}:\n{wrong}\n  the fields of a {kind.__name__}: {fields}") from error


def write_document(path: Path, document: Document) -> None:
    """Write a problem or a plan as JSON. Raises OSError."""
    path.write_text(document.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _parse(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise DocumentError(f"{path}: {why}; give a JSON or YAML file") from error
    if path.suffix not in {".yaml", ".yml"}:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise DocumentError(f"{path}: it is no JSON: {error}; a YAML file is named .yaml") from error
    try:
        import yaml  # noqa: PLC0415 - of the extra `sim`
    except ModuleNotFoundError as error:
        raise DocumentError(f'{path}: YAML needs `pip install "tidegate[sim]"`; JSON does not') from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DocumentError(f"{path}: it is no YAML: {' '.join(str(error).split())}") from error
