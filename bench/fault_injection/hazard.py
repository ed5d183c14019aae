"""Definition of a hazard and its result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.fault_injection.rig import Rig


@dataclass(frozen=True)
class Result:
    """Measurements of one run of a hazard."""

    after: str
    """The outcome in words, for the table."""
    holds: bool
    """Whether the aim of the hazard was met."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Further figures, as a JSON object."""


@dataclass(frozen=True)
class Hazard:
    """A fault caused by a client, a Triton, a disk or an operator, which must not affect others."""

    name: str
    """Name for `--only`."""
    what: str
    """Description of the fault."""
    aim: str
    """Condition under which the hazard passes."""
    run: Callable[[Rig], Result]
    """Causes the fault and measures the outcome."""
