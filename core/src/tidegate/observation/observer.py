"""Observers of an engine, and how a distribution offers one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel, ConfigDict

from tidegate.api import AnyCommand, Setup
from tidegate.observation.effects import AnyEffect
from tidegate.observation.stimuli import AnyStimulus


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine besides its policy; equal events give equal commands only under equal settings."""

    learn: bool
    """Whether profiles are corrected by what is observed."""
    max_tries: int
    """How often a request is tried whose workers fail; then the failure is its answer."""
    first_lead_ns: int = 0
    """How early, before a stage is expected to end, the first batch is sent behind it; later it is learned. 0:
    never."""


class ObserverOptions(BaseModel):
    """Base class of an observer's options, validated: unknown names and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Observer(ABC):
    """Watches an engine: sees every stimulus with the commands and the effects that it had.

    One that raises is removed, which the log says once and a metric counts; nothing else happens. Nothing that it is
    shown may be changed.
    """

    Options: ClassVar[type[ObserverOptions]] = ObserverOptions

    def __init__(self, options: ObserverOptions) -> None:
        self.options = options

    def started(self, policy: str, options: dict[str, Any], setup: Setup, settings: EngineSettings) -> None:  # noqa: B027 - optional
        """The engine is about to take in its first stimulus; one who does not care need not say so.

        `policy`: its name; `options`: its validated options.
        """

    @abstractmethod
    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        """The engine took in a stimulus. This is on the hot path, so be quick.

        `commands`: what the policy wanted because of it and was carried out; `effects`: what the driver is given to do.
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
