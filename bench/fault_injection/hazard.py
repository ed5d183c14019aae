"""What a hazard is, and how it went."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.fault_injection.rig import Rig


@dataclass(frozen=True)
class Result:
    """What was measured in this run."""

    after: str
    """In words, for the table."""
    holds: bool
    """Whether it is as the hazard's aim says."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Whatever else is worth keeping, as JSON."""


@dataclass(frozen=True)
class Hazard:
    """Something that a client, a Triton, a disk or an operator does, and that nobody else may suffer from."""

    name: str
    """For `--only`."""
    what: str
    """What is done."""
    aim: str
    """When it holds."""
    run: Callable[[Rig], Result]
    """Does it, and measures."""
