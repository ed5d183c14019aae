"""What a distribution adds to Tidegate: entry-point group `tidegate`, one module each, whose hooks return these specs.

Hooks register, methods decide: each hook is called once, at start; configuration selects what it returned by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pluggy

from tidegate.api.planner import Document, Plan, Planner
from tidegate.api.policy import Policy

PROJECT = "tidegate"
"""The entry-point group and pluggy's project name."""

hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class PolicySpec:
    """A policy that can be selected by name."""

    name: str
    summary: str
    """One line, for lists."""
    policy: type[Policy]


@dataclass(frozen=True)
class PlannerSpec:
    """A planner that can be selected by name."""

    name: str
    summary: str
    """One line, for lists."""
    problem: type[Document]
    plan: type[Plan]
    run: Planner
    """The planner: from a problem of the one type to a plan of the other."""
    layout: Callable[[Any, Any], Document] | None = None
    """What makes of a problem and a plan of it a `tidegate.documents.Layout`.

    None: its plans say nothing of partitions and workers.
    """


@dataclass(frozen=True)
class CommandSpec:
    """A subcommand of `tidegate`: a function whose annotated parameters Typer turns into a command line."""

    name: str
    run: Callable[..., Any]
