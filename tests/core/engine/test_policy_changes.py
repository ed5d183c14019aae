"""A policy that is changed while requests wait and batches run: nothing is lost, and a replay tells the same."""

import io
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tidegate.api import Model, PolicyOptions, Profile, Request, RequestArrived, Setup, StageFinished, Worker
from tidegate.engine import AnyEffect, ClockAdvanced, Engine, PolicyChanged, StartStage
from tidegate.host import Plugins
from tidegate.observation import Recorder, read_log
from tidegate.sim.replay import replay
from tidegate.toolkit import FirstComeFirstServed

MS = 1_000_000
MAKE = Plugins.installed().make_policy
NAMES = sorted(Plugins.installed().policies)
MODELS = tuple(Model(name, max_rows=4, slo_ns=40 * MS) for name in "ab")
WORKERS = (Worker(0, "w0", ("a",)), Worker(1, "w1", ("a", "b")))
SETUP = Setup(MODELS, WORKERS, tuple(Profile(name, "default", tuple(MS * t for t in (4, 5, 6, 7))) for name in "ab"))


class World:
    """An engine whose stages take as long as planned."""

    def __init__(self, name: str, *, policies: Any = MAKE, log: io.BytesIO | None = None) -> None:
        observers = [Recorder(log)] if log else ()
        self.engine = Engine(MAKE(name, SETUP, {}), name=name, observers=observers, policies=policies)
        self._ends: list[tuple[int, int, StageFinished]] = []

    def run_until(self, until_ns: int) -> None:
        """Let time pass."""
        while True:
            wake_ns = self.engine.next_wake_ns
            end_ns = self._ends[0][0] if self._ends else None
            next_ns = min((at for at in (wake_ns, end_ns) if at is not None), default=None)
            if next_ns is None or next_ns > until_ns:
                return
            ended = heappop(self._ends)[2] if next_ns == end_ns else None
            self.handle(ended or ClockAdvanced(max(next_ns, self.engine.now_ns)))

    def handle(self, event: Any) -> None:
        """One event, and the stages that it starts."""
        effects: list[AnyEffect] = self.engine.handle(event)
        for effect in effects:
            if isinstance(effect, StartStage):
                stage = effect.batch.stages[effect.stage]
                end_ns = event.now_ns + stage.duration_ns
                ended = StageFinished(end_ns, effect.batch.id, effect.stage, stage.worker_id, event.now_ns, end_ns)
                heappush(self._ends, (end_ns, effect.batch.id, ended))
        self.engine.validate()


@settings(max_examples=examples(1))
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 12 * MS), st.one_of(st.sampled_from(MODELS), st.sampled_from(NAMES))), max_size=40
    )
)
def test_every_request_ends_once_whoever_decides(steps: list[tuple[int, Model | str]]) -> None:
    log = io.BytesIO()
    world, now_ns, requests = World("fifs", log=log), 0, 0
    for gap_ns, what in steps:
        now_ns += gap_ns
        world.run_until(now_ns)
        if isinstance(what, Model):
            request = Request(requests, what.name, 1, now_ns, now_ns + (what.slo_ns or 0))
            world.handle(RequestArrived(now_ns, request))
            requests += 1
        else:
            world.handle(PolicyChanged(now_ns, what, {}))
            assert world.engine.name == what
    world.run_until(now_ns + 10_000 * MS)
    tally = world.engine.tally
    assert tally.accepted == tally.ended == requests
    assert tally.failed == tally.cancelled == 0
    assert (world.engine.queued, world.engine.in_flight) == (0, 0)
    world.engine.close()
    header, entries = read_log(log.getvalue().splitlines())
    assert replay(header, entries, MAKE(header.policy, SETUP, {}), policies=MAKE).difference is None


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (PolicyChanged(0, "symphonie", {}), "symphonie"),
        (PolicyChanged(0, "symphony", {"no_such": 1}), "no_such"),
    ],
)
def test_one_that_cannot_be_made_is_refused_and_nothing_has_changed(event: PolicyChanged, words: str) -> None:
    world = World("fifs")
    with pytest.raises(ValueError, match=words):
        world.handle(event)
    assert world.engine.name == "fifs"
    world.handle(RequestArrived(1, Request(0, "a", 1, 1, 50 * MS)))
    assert world.engine.in_flight == 1


def test_an_engine_without_policies_keeps_its_own() -> None:
    with pytest.raises(ValueError, match="keeps its policy"):
        World("fifs", policies=None).handle(PolicyChanged(0, "symphony", {}))


def test_the_new_policy_plans_for_its_own_share_of_stages() -> None:
    class Bold(FirstComeFirstServed):
        quantile = 0.5

    world = World("fifs", policies=lambda _name, setup, _options: Bold(setup, PolicyOptions()))
    world.handle(PolicyChanged(0, "bold", {}))
    expectations: Any = world.engine.expectations
    learners = [learner for of_shape in expectations._learners.values() for learner in of_shape.values()]
    assert {learner.quantile for learner in learners} == {0.5}


def test_what_only_the_policy_before_would_have_run_late_waits_no_more() -> None:
    """Behind a request that has more time, where a policy that looks at the oldest would tell it too late."""
    world = World("fifs")
    for number in range(4):
        deadline_ns = (90 if number < 3 else 3) * MS
        world.handle(RequestArrived(number, Request(number, "b", 4, number, deadline_ns)))
    world.handle(PolicyChanged(4 * MS, "symphony", {}))
    assert 3 not in world.engine._state.waiting.queued
    assert world.engine.tally.dropped.total() == 1
