"""What clients choose does not pile up: an engine that has answered all they asked keeps no more for having been asked.

They choose deadlines and how long they wait, their own names, and what their requests merge with.
"""

import gc
import random
from collections.abc import Iterator

import pytest

from tidegate.api import NEVER_NS, Model, Profile, Request, RequestArrived, Setup, StageFinished, Worker
from tidegate.engine import AnyStimulus, ClockAdvanced, Engine, StartStage
from tidegate.engine.timers import MAX_DEAD_TIMERS, Timers
from tidegate.engine.waiting.flows import WaitingFlows
from tidegate.engine.waiting.waiting import OutOfOrderDeadlines
from tidegate.host import Plugins

PLUGINS = Plugins.installed()
MS = 1_000_000
FAR_NS = 10**18
"""More than thirty years."""
SETUP = Setup(
    models=(Model("m", 4, 50 * MS, on_deadline_miss="serve"),),
    workers=(Worker(0, "w0", ("m",)), Worker(1, "w1", ("m",))),
    profiles=(Profile.linear("m", alpha_ms=0.1, beta_ms=0.5, max_rows=4),),
)


def _drawn(rng: random.Random, number: int, now_ns: int) -> Request:
    """One whose names are all its own, but for its shape: of each of those so many stages are remembered."""
    due_ns = rng.choice([now_ns + 20 * MS, now_ns + 40 * MS, FAR_NS + rng.randrange(FAR_NS), NEVER_NS])
    shape = f"x:{number % 3}"
    return Request(number, "m", 1, now_ns, due_ns, f"key{number}", f"app{number}", shape, client=f"client{number}")


def _sizes_within(engine: Engine) -> int:
    """How much is in all that can be reached from an engine, but for what counts how requests ended."""
    seen: set[int] = set()
    total, to_see = 0, [vars(engine)]
    while to_see:
        thing = to_see.pop()
        if id(thing) in seen or isinstance(thing, type | str | bytes | int | float) or callable(thing):
            continue
        seen.add(id(thing))
        total += 1
        to_see += gc.get_referents(thing)
    return total


def _load(engine: Engine, rng: random.Random) -> Iterator[None]:
    """Keep the engine busy for ever, with never an instant at which nothing waits; yields at every arrival."""
    running: list[tuple[int, StartStage]] = []
    now_ns = number = 0
    while True:
        ends_ns = min((end_ns for end_ns, _ in running), default=NEVER_NS)
        arrives_ns = now_ns + 100_000 if engine.queued < 12 else NEVER_NS
        now_ns = min(arrives_ns, ends_ns, max(now_ns, engine.next_wake_ns or NEVER_NS))
        event: AnyStimulus
        if now_ns == ends_ns:
            started = min(running, key=lambda stage: stage[0])
            running.remove(started)
            batch, stage = started[1].batch, started[1].stage
            begun_ns = now_ns - 800_000
            event = StageFinished(now_ns, batch.id, stage, batch.stages[stage].worker_id, begun_ns, now_ns)
        elif now_ns == arrives_ns:
            event = RequestArrived(now_ns, _drawn(rng, number, now_ns))
            number += 1
            yield
        else:
            event = ClockAdvanced(now_ns)
        for effect in engine.handle(event):
            if isinstance(effect, StartStage):
                busy_ns = max((end_ns for end_ns, on in running if _worker(on) == _worker(effect)), default=now_ns)
                running.append((busy_ns + 800_000, effect))


def _worker(effect: StartStage) -> int:
    return effect.batch.stages[effect.stage].worker_id


@pytest.mark.parametrize("policy", PLUGINS.policies)
def test_nothing_is_kept_of_what_is_over(policy: str) -> None:
    engine = Engine(PLUGINS.make_policy(policy, SETUP, {}), name=policy, strict=True)
    load = _load(engine, random.Random(1))
    sizes = []
    for arrivals in (1200, 800):
        for _ in range(arrivals):
            next(load)
        sizes.append(_sizes_within(engine))
    assert engine.tally.ended > 1800
    assert sizes[1] < sizes[0] + 400, f"{policy} keeps something of every request"


def test_timers_that_are_moved_or_cancelled_leave_nothing_behind_others() -> None:
    timers = Timers()
    timers.set("soon", 1)
    for number in range(1000):
        timers.set("moved", FAR_NS + number)
        timers.set(number, FAR_NS)
        timers.cancel(number)
    assert len(timers._heap) <= 2 * MAX_DEAD_TIMERS
    assert timers.next_ns == 1
    assert list(timers.pop_due(2 * FAR_NS)) == [(1, "soon"), (FAR_NS + 999, "moved")]


def test_what_is_due_long_after_one_that_waits_leaves_nothing_behind_it() -> None:
    queued = {0: Request(0, "m", 1, 0, 1)}
    hurried = OutOfOrderDeadlines(queued, lambda: False, lambda request: request.deadline_ns)
    hurried.watch(queued[0])
    for number in range(1, 1000):
        queued[number] = Request(number, "m", 1, 0, FAR_NS + number)
        hurried.watch(queued[number])
        hurried.watch(queued[number])
        if number < 999:
            del queued[number]
        assert hurried.next_ns == 1
    assert len(hurried._heap) <= 2 * MAX_DEAD_TIMERS
    assert [request.id for request in hurried.pop_hopeless(FAR_NS)] == [0]
    assert [request.id for request in hurried.pop_hopeless(2 * FAR_NS)] == [999]


def test_what_is_late_and_wanted_long_after_one_that_waits_leaves_nothing_behind_it() -> None:
    late = Engine(PLUGINS.make_policy("fifs", SETUP, {}), name="fifs")._state.waiting.late
    late.add(Request(0, "m", 1, 0, 1, late_until_ns=2))
    for number in range(1, 1000):
        late.add(Request(number, "m", 1, 0, 1, late_until_ns=FAR_NS))
        if number < 999:
            late.remove(number)
        assert late.next_ns == 2
    assert len(late._expiries) <= 2 * MAX_DEAD_TIMERS
    assert late.pop_expired(2) == [0]
    assert 999 in late.pop_expired(FAR_NS)


def test_who_has_no_deadline_leaves_nothing_behind_another_without_one_that_waits() -> None:
    flows = WaitingFlows(no_slo_max_deferral_ns=1)
    flows.join(Request(0, "m", 1, 0, client="patient"))
    for number in range(1, 1000):
        request = Request(number, "m", 1, 0, client=f"c{number}")
        flows.join(request)
        flows.part(request)
    assert len(flows._unhurried) <= 2 * MAX_DEAD_TIMERS
    assert len(flows._rankings[False]._heap) <= 2 * MAX_DEAD_TIMERS
    assert len(flows._flows) <= 2 * MAX_DEAD_TIMERS
    assert flows.is_turn(2, flows.of(0), 0)
