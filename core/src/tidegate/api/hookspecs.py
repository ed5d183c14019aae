"""The hooks by which a distribution adds to Tidegate: entry-point group `tidegate`, one module each.

Hooks register, methods decide: each hook returns specs once, at start; configuration selects one by its name.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pluggy

from tidegate.api.commands import AnyCommand
from tidegate.api.events import AnyEvent
from tidegate.api.planner import Document, Plan, Planner
from tidegate.api.policy import Policy, Setup

PROJECT = "tidegate"
"""The entry-point group and pluggy's project name."""

hookspec = pluggy.HookspecMarker(PROJECT)
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
    """From a problem of the one type to a plan of the other."""
    layout: Callable[[Any, Any], Document] | None = None
    """From a problem and a plan of it to a `tidegate.documents.Layout`.

    None: its plans say nothing of partitions and workers.
    """


@dataclass(frozen=True)
class CommandSpec:
    """A subcommand of `tidegate`: a function whose annotated parameters Typer turns into a command line."""

    name: str
    run: Callable[..., Any]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine does besides what its policy says; the same events have the same answers only with the same."""

    learn: bool
    """Whether profiles are corrected by what is observed."""
    max_tries: int
    """How often a request is tried whose workers fail; then the failure is its answer."""
    first_lead_ns: int = 0
    """How early, before a leg is expected to end, the first batch is sent behind it; later it is learned. 0: never."""


class Observer(Protocol):
    """Watches an engine: sees every stimulus with the commands that the policy answered it with.

    One that raises is removed, which the log says once and a metric counts; nothing else happens.
    """

    def engine_started(self, policy: str, options: dict[str, Any], setup: Setup, settings: EngineSettings) -> None:
        """Called once, before the first event."""

    def event_handled(self, event: AnyEvent, commands: list[AnyCommand]) -> None:
        """Called after each stimulus; on the hot path, so be quick."""

    def close(self) -> None:
        """Called once, after the last event."""


@dataclass(frozen=True)
class ObserverSpec:
    """An observer that can be selected by name."""

    name: str
    summary: str
    make: Callable[[], Observer]


class Hooks:
    """The hook specifications."""

    @hookspec
    def tidegate_policies(self) -> Iterable[PolicySpec]:
        """Policies this distribution offers."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_planners(self) -> Iterable[PlannerSpec]:
        """Planners this distribution offers (`tidegate plan NAME`)."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_commands(self) -> Iterable[CommandSpec]:
        """Subcommands this distribution adds to `tidegate`."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_observers(self) -> Iterable[ObserverSpec]:
        """Observers this distribution offers (`tidegate serve --observer NAME`)."""
        raise AssertionError("a specification is never called")
