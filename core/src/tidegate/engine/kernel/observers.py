"""Observers of an engine: an observer that raises an exception is removed and reported."""

from collections.abc import Sequence

from tidegate.api import AnyCommand, Setup
from tidegate.observation import AnyEffect, AnyStimulus, EngineSettings, Observer, ObserverRemoved


class Observers:
    """Observers of one engine; isolates the engine from their exceptions."""

    def __init__(self, observers: Sequence[Observer], *, strict: bool) -> None:
        """Create the list. `strict`: exceptions of observers reach the caller, as for the assertions of tests."""
        self._observers = list(observers)
        self._strict = strict
        self._removed: list[AnyEffect] = []
        """Not yet reported."""
        self.watch = bool(observers)
        """Whether anybody watches, or did and is still to be reported: `handled` need not be called otherwise."""

    def add(self, observer: Observer) -> None:
        """Add an observer, which sees everything from the next event on."""
        self._observers.append(observer)
        self.watch = True

    def remove(self, observer: Observer) -> None:
        """Remove an observer; without effect if it was removed already."""
        self._observers = [each for each in self._observers if each is not observer]
        self.watch = bool(self._observers or self._removed)

    def started(self, policy: str, options: dict[str, object], setup: Setup, settings: EngineSettings) -> None:
        """Notify the observers before the first event of the policy's name, options, setup and engine settings."""
        for observer in tuple(self._observers):
            try:
                observer.started(policy, options, setup, settings)
            except Exception as fault:
                self._remove(observer, fault)

    def handled(self, event: AnyStimulus, commands: list[AnyCommand], effects: list[AnyEffect]) -> list[AnyEffect]:
        """Notify the observers of an event; return the effects that concern observers since the last one."""
        broken = []
        for observer in self._observers:
            try:
                observer.handled(event, commands, effects)
            except Exception as fault:
                broken.append((observer, fault))
        for observer, raised in broken:
            self._remove(observer, raised)
        return self._reported() if self._removed else []

    def close(self) -> list[AnyEffect]:
        """Notify the observers after the last event."""
        for observer in tuple(self._observers):
            try:
                observer.close()
            except Exception as fault:
                self._remove(observer, fault)
        return self._reported()

    def _remove(self, observer: Observer, fault: Exception) -> None:
        if self._strict:
            raise fault
        self._observers.remove(observer)
        self._removed.append(ObserverRemoved(type(observer).__name__, f"{type(fault).__name__}: {fault}"))

    def _reported(self) -> list[AnyEffect]:
        removed, self._removed = self._removed, []
        self.watch = bool(self._observers)
        return removed
