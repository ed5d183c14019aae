"""One who looks at an engine for a while: told from the next event on, and nobody's trouble."""

from collections.abc import Sequence

import pytest

from tests.core.engine.script import Script, arrived, engine_of, finished, run
from tidegate.api import AnyCommand, AnyEvent, Dispatch, RequestArrived
from tidegate.engine import AnyEffect, AnyStimulus, ObserverRemoved
from tidegate.observation import ObserverOptions, PolicyTraceObserver, TimelineRecorder


class Looks(PolicyTraceObserver):
    """Remembers what it is told."""

    def __init__(self, breaks: str = "") -> None:
        super().__init__(ObserverOptions())
        self.breaks = breaks
        self.events: list[str] = []
        self.heard: list[tuple[AnyEvent, Sequence[AnyCommand]]] = []

    def on_policy_event(self, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        if self.breaks == "told":
            raise RuntimeError("of no meaning")
        self.heard.append((event, commands))

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        if self.breaks == "handled":
            raise RuntimeError("of no meaning")
        self.events.append(type(event).__name__)


def test_it_sees_what_happens_from_its_admission_to_its_dismissal() -> None:
    engine, witness = engine_of(Script([run(0)], [run(1, batch=1, worker=1, at_ns=1)])), Looks()
    engine.handle(arrived(0))
    engine.attach(witness)
    engine.handle(arrived(1, 1))
    engine.handle(finished(11))
    engine.detach(witness)
    engine.handle(arrived(2, 12))
    assert witness.events == ["RequestArrived", "StageFinished"]
    event, commands = witness.heard[0]
    assert isinstance(event, RequestArrived)
    assert event.request.id == 1
    assert [type(command) for command in commands] == [Dispatch]
    engine.validate()


def test_there_is_one_at_a_time() -> None:
    engine, first = engine_of(Script()), Looks()
    engine.attach(first)
    with pytest.raises(ValueError, match="dismiss it first"):
        engine.attach(TimelineRecorder())
    engine.detach(first)
    engine.attach(TimelineRecorder())


@pytest.mark.parametrize("breaks", ["told", "handled"])
def test_one_that_raises_is_removed_and_nothing_else_happens(breaks: str) -> None:
    engine, witness = engine_of(Script([run(0)]), strict=False), Looks(breaks)
    engine.attach(witness)
    effects = engine.handle(arrived(0))
    assert [effect.observer for effect in effects if isinstance(effect, ObserverRemoved)] == ["Looks"]
    assert engine.handle(finished(10)) == []
    assert engine.tally.answered == 1
    engine.detach(witness)
    engine.validate()
