"""What a distribution adds to Tidegate: entry-point group `tidegate`, one module each, whose hooks return these specs.

Hooks register, methods decide: each hook is called once, at start; configuration selects what it returned by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pluggy

from tidegate.api.planner import Plan, Planner, VersionedDocument
from tidegate.api.policy import Policy

PROJECT_NAME = "tidegate"
"""The entry-point group and pluggy's project name."""

hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@dataclass(frozen=True)
class PolicySpec:
    """A policy that can be selected by name."""

    name: str
    summary: str
    """One line, for lists."""
    policy: type[Policy]
    recommend_options: tuple[dict[str, Any], ...] = ({},)
    """Options with which `tidegate recommend` tries it: its defaults, and others that are better for some load."""


@dataclass(frozen=True)
class PlannerSpec:
    """A planner that can be selected by name."""

    name: str
    summary: str
    """One line, for lists."""
    problem: type[VersionedDocument]
    plan: type[Plan]
    run: Planner
    """The planner: from a problem of the one type to a plan of the other."""
    layout: Callable[[Any, Any], VersionedDocument] | None = None
    """What makes of a problem and a plan of it a `tidegate.schemas.Layout`.

    None: its plans say nothing of partitions and workers.
    """
    problem_of: Callable[[Any], VersionedDocument] | None = None
    """What makes a problem of a `tidegate.schemas.Demand`, so that `tidegate recommend` tries the planner.

    It raises PlanningError for a demand that lacks what the planner needs: what is lacking, and the remedy. None: it is
    not tried, as with planners that others are judged by.
    """


@dataclass(frozen=True)
class CommandSpec:
    """A subcommand of `tidegate`: a function whose annotated parameters Typer turns into a command line."""

    name: str
    run: Callable[..., Any]
