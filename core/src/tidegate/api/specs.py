"""Specs by which a distribution extends Tidegate: its hooks, in the entry-point group `tidegate`, return them.

Each hook is called once, at start; the configuration selects a spec by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pluggy

from tidegate.api.planner import Plan, Planner, VersionedDocument
from tidegate.api.policy import Policy

PROJECT_NAME = "tidegate"
"""Name of the entry-point group and of the pluggy project."""

hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@dataclass(frozen=True)
class PolicySpec:
    """A policy that users select by name."""

    name: str
    summary: str
    """One line, for lists."""
    policy: type[Policy]
    recommend_options: tuple[dict[str, Any], ...] = ({},)
    """Option sets that `tidegate recommend` simulates: the defaults, and others that suit some loads better."""


@dataclass(frozen=True)
class PlannerSpec:
    """A planner that users select by name."""

    name: str
    summary: str
    """One line, for lists."""
    problem: type[VersionedDocument]
    plan: type[Plan]
    run: Planner
    """The planner function: from a problem of type `problem` to a plan of type `plan`."""
    layout: Callable[[Any, Any], VersionedDocument] | None = None
    """Function from a problem and its plan to a `tidegate.schemas.Layout`.

    None: its plans do not describe partitions and workers.
    """
    problem_of: Callable[[Any], VersionedDocument] | None = None
    """Function from a `tidegate.schemas.Demand` to a problem, used by `tidegate recommend`.

    It raises PlanningError if the demand lacks something; the message says what is missing and how to get it. None:
    `recommend` skips the planner.
    """


@dataclass(frozen=True)
class CommandSpec:
    """A subcommand of `tidegate`: Typer derives its command line from the annotated parameters of a function."""

    name: str
    run: Callable[..., Any]
