"""A request that waits behind others with more time is told when its own is over, whichever policy runs."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.api import NEVER_NS, Drop, Model, Profile, Request, RequestArrived, Setup, StageFinished, Worker
from tidegate.api import RequestCancelled as Cancelled
from tidegate.api.profile import MAX_SURPRISE_FACTOR
from tidegate.engine import AnyEffect, AnyStimulus, ClockAdvanced, Engine, StartStage
from tidegate.host import Plugins
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.workers import Outcome, failed, finished

PLUGINS = Plugins.installed()
PUNCTUAL = [name for name, spec in PLUGINS.policies.items() if not spec.policy.best_effort]
STAGE_NS, UPPER_NS = 1_000, 100
"""The first batch takes ten times as long as was planned."""
SETUP = Setup(
    models=(Model("m", 4),),
    workers=(Worker(0, "w", ("m",)),),
    profiles=(Profile.linear("m", alpha_ms=0, beta_ms=UPPER_NS / 1e6, max_rows=4),),
)


def _engine(policy: str) -> Engine:
    return Engine(PLUGINS.make_policy(policy, SETUP, {}), name=policy, strict=True, learn=False)


def _arrived(request_id: int, now_ns: int, due_ns: int) -> RequestArrived:
    return RequestArrived(now_ns, Request(request_id, "m", 1, now_ns, due_ns))


def _starts(engine: Engine, event: AnyStimulus) -> tuple[StartStage, ...]:
    return tuple(effect for effect in engine.handle(event) if isinstance(effect, StartStage))


@pytest.mark.parametrize("later_ns", [NEVER_NS, 20_000_000])
@pytest.mark.parametrize("policy", [name for name in PUNCTUAL if not PLUGINS.policy(name).policy.runs_pipelines])
def test_it_is_told_while_the_one_before_it_waits(policy: str, later_ns: int) -> None:
    engine = _engine(policy)
    wakes: list[AnyEffect] = []
    (first,) = _starts(engine, _arrived(0, 1, later_ns)) or _starts(engine, ClockAdvanced(engine.next_wake_ns or 1))
    began_ns = engine.now_ns
    engine.handle(_arrived(1, began_ns, later_ns))
    engine.handle(_arrived(2, began_ns, began_ns + 500))
    while (wake_ns := engine.next_wake_ns) is not None and wake_ns <= began_ns + 500:
        wakes += engine.handle(ClockAdvanced(wake_ns))
        engine.validate()
    assert wakes == [Drop(2, "deadline_unreachable")]
    assert engine.now_ns == began_ns + 500 - UPPER_NS // MAX_SURPRISE_FACTOR + 1, "it may be quicker than expected"
    over = StageFinished(began_ns + STAGE_NS, first.batch.id, 0, 0, began_ns, began_ns + STAGE_NS)
    (second,) = _starts(engine, over) or _starts(engine, ClockAdvanced(engine.next_wake_ns or 0))
    assert second.batch.request_ids == (1,)


def test_where_late_ones_are_served_nobody_wakes_for_it() -> None:
    engine = _engine("fifs")
    engine.handle(_arrived(0, 1, NEVER_NS))
    engine.handle(_arrived(1, 1, NEVER_NS))
    engine.handle(_arrived(2, 1, 500))
    assert engine.next_wake_ns is None
    (second,) = _starts(engine, StageFinished(1 + STAGE_NS, 0, 0, 0, 1, 1 + STAGE_NS))
    assert second.batch.request_ids == (1, 2)


@pytest.mark.parametrize("policy", PUNCTUAL)
def test_nothing_is_kept_of_requests_in_the_order_of_their_deadlines(policy: str) -> None:
    engine = _engine(policy)
    for request_id in range(50):
        engine.handle(_arrived(request_id, 1 + request_id, 5_000 + request_id))
    assert not engine._state.waiting._hurried._heap


class _Told:
    """A listener that knows when requests came, and when they were told how they ended."""

    def __init__(self) -> None:
        self.came: dict[int, RequestArrived] = {}
        self.dropped_ns: dict[int, int] = {}
        self.ended_ns: dict[int, int] = {}
        self._batches: dict[int, tuple[int, ...]] = {}

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Note who came, and whose end it was."""
        if isinstance(event, RequestArrived):
            self.came[event.request.id] = event
        elif isinstance(event, Cancelled):
            self.ended_ns.setdefault(event.request_id, event.now_ns)
        elif isinstance(event, StageFinished):
            self.ended_ns.update(dict.fromkeys(self._batches[event.batch_id], event.now_ns))
        for effect in effects:
            if isinstance(effect, StartStage):
                self._batches[effect.batch.id] = effect.batch.request_ids
            elif isinstance(effect, Drop):
                self.dropped_ns[effect.request_id] = self.ended_ns[effect.request_id] = event.now_ns


@settings(deadline=None)
@given(
    policy=st.sampled_from(PUNCTUAL),
    # When, how much time it has, whether its client leaves, and whether its stage fails.
    plan=st.lists(st.tuples(st.integers(1, 2_000), st.integers(50, 3_000), st.booleans(), st.booleans()), max_size=25),
    slowness=st.integers(1, 12),
)
def test_no_request_waits_beyond_its_deadline_behind_a_later_deadline(
    policy: str, plan: list[tuple[int, int, bool, bool]], slowness: int
) -> None:
    def execute(effect: StartStage, started_ns: int) -> Outcome:
        ended_ns = started_ns + slowness * UPPER_NS
        if plan[effect.batch.request_ids[0]][3]:
            return failed(effect, ended_ns, "made to fail", retry=True)
        return finished(effect, started_ns, ended_ns)

    told, engine = _Told(), _engine(policy)
    simulation = Simulation(engine, ExactWorkers(execute), listeners=[told])
    arrivals = [_arrived(number, at_ns, at_ns + time_ns) for number, (at_ns, time_ns, *_) in enumerate(plan)]
    leaving = [Cancelled(at_ns + time_ns // 2, n) for n, (at_ns, time_ns, leaves, _) in enumerate(plan) if leaves]
    simulation.schedule([*arrivals, *leaving])
    simulation.run()
    engine.validate()
    for number, dropped_ns in told.dropped_ns.items():
        came = told.came[number].request
        slower = [
            other.request
            for other in told.came.values()
            if (other.request.arrival_ns, other.request.id) < (came.arrival_ns, number)
            and other.request.deadline_ns > came.deadline_ns
            and told.ended_ns.get(other.request.id, NEVER_NS) > came.arrival_ns
        ]
        assert not slower or dropped_ns <= came.deadline_ns, (came, slower)
