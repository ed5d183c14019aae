"""Observers of an engine, and how a distribution offers one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from tidegate.api import AnyCommand, AnyEvent, Setup
from tidegate.api.planner import DocumentSection
from tidegate.observation.effects import AnyEffect
from tidegate.observation.stimuli import AnyStimulus


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine besides its policy; equal events give equal commands only under equal settings."""

    learn: bool
    """Whether observations correct the profiles."""
    max_tries: int
    """Maximum number of tries of a request whose workers fail; then the request fails."""
    first_lead_ns: int = 0
    """Initial lead of early dispatch in ns; 0: no early dispatch."""
    priority_floors: dict[int, float] = {}
    """Fraction of worker time that a priority class keeps while it waits, by priority; without one: the default."""


class ObserverOptions(DocumentSection):
    """Base class of an observer's options, validated: unknown names and infinite numbers are errors."""


class Observer(ABC):
    """Base class of observers, which see every stimulus of an engine with its commands and effects.

    An observer must not change what it is shown. If it raises an exception, it is removed, logged and counted; the
    engine goes on.
    """

    Options: ClassVar[type[ObserverOptions]] = ObserverOptions

    def __init__(self, options: ObserverOptions) -> None:
        self.options = options

    def started(self, policy: str, options: dict[str, Any], setup: Setup, settings: EngineSettings) -> None:  # noqa: B027 - optional
        """Handle the start of the engine, before its first stimulus; optional.

        `policy`: name of the policy; `options`: its validated options.
        """

    @abstractmethod
    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        """Handle a stimulus that the engine applied. Be quick: this is on the hot path.

        `commands`: applied commands of the policy; `effects`: effects for the driver.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Handle the end of the stream; optional."""


@dataclass(frozen=True)
class ObserverSpec:
    """Name, summary and class of an observer that users select by name."""

    name: str
    summary: str
    """One line, for lists."""
    observer: type[Observer]


class PolicyTraceObserver(Observer):
    """Observer that also sees the events that the policy gets, such as WorkerReady and TimerFired.

    An engine has at most one, from its start (`Engine(timelines=...)`) or for a while (`Engine.attach`).
    """

    @abstractmethod
    def on_policy_event(self, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        """Handle an event that the policy got because of the current stimulus, with its applied commands."""
