"""A fault of the engine's own, in whichever of its methods: every request ends, and the next ones are served.

The methods are not listed but found, so that a new one is tried as well.
"""

import inspect
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count, product
from types import FunctionType, ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

import tidegate.engine.kernel.policy_runner
from tests.core.engine import script
from tests.core.engine.script import PROFILES, Script, arrived, engine_of, run, two_stages
from tidegate.api import (
    NEVER_NS,
    BatchFailed,
    CancelTimer,
    Commands,
    Dispatch,
    Drop,
    LatencyDistributionUpdated,
    PolicyOptions,
    Preempt,
    ProfileUpdated,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    StageFinished,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import (
    AnyStimulus,
    ClockAdvanced,
    Engine,
    EngineRestarted,
    Fail,
    PolicyOverran,
    PolicyReplaced,
    RetryLimitChanged,
    StartStage,
    TopologyChanged,
)
from tidegate.engine.kernel.engine import Observers
from tidegate.engine.kernel.event_handlers import EventHandlers
from tidegate.toolkit import FirstComeFirstServed

NOT_ON_THE_WAY = {
    "__init__", "_begin", "rebuild_state", "_make_books", "_named_by", "_sent_requests", "close", "flight", "handle",
    "next_ns", "setup", "timeline", "tell", "validate", "_asdict", "_replace",
}  # fmt: skip
"""At the start, at the end, asked by a driver, or the way back itself: below that there is nothing to fall back on."""


def methods() -> Iterator[tuple[type | ModuleType, str]]:
    """Every method of every class of the engine, but for those that isolate observers; what commands do."""
    for name, function in vars(tidegate.engine.kernel.policy_runner).items():
        if isinstance(function, FunctionType) and function.__module__ == tidegate.engine.kernel.policy_runner.__name__:
            yield tidegate.engine.kernel.policy_runner, name
    for module in pkgutil.walk_packages(tidegate.engine.__path__, "tidegate.engine."):
        for _, cls in inspect.getmembers(import_module(module.name), inspect.isclass):
            if cls.__module__ == module.name and cls is not Observers:
                for name, member in vars(cls).items():
                    if isinstance(member, FunctionType) and name not in NOT_ON_THE_WAY and not name.startswith("__"):
                        yield cls, name


METHODS = sorted(set(methods()), key=lambda found: (found[0].__name__, found[1]))
CHECKS = ["check_dispatch", "check_deadlines"]
MODELS = tuple(replace(model, on_deadline_miss="serve") for model in script.MODELS)
SETUP = replace(script.SETUP, models=MODELS)
ONE_WORKER = replace(SETUP, workers=SETUP.workers[:1])
"""Worker 0 alone, which hosts `m` and `n`."""


class Restless(FirstComeFirstServed):
    """First come, first served; and it drops, preempts, cancels and sets timers, so that all of that is tried."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        now_ns, number = event.now_ns, event.request.id
        commands = [*super().on_request_arrived(event), SetTimer("soon", now_ns + 3), SetTimer("never", now_ns + 9)]
        sent = [command.batch for command in commands if isinstance(command, Dispatch)]
        if not sent and number % 5 == 4 and self.forget(number):
            commands.append(Drop(number, "whim"))
        if sent and number % 7 == 0:
            commands.append(Preempt(sent[0].id))
        return [*commands, CancelTimer("never")]

    def on_latency_distribution_updated(self, event: LatencyDistributionUpdated) -> Commands:
        """That it is overridden lets the engine learn applications and the feature."""
        return ()

    def forget(self, number: int) -> bool:
        return bool(tuple(super().on_request_cancelled(RequestCancelled(0, number))) == ())


def noting(original: Callable[..., Any], name: str, called: Counter[str]) -> Callable[..., Any]:
    def method(*arguments: Any, **options: Any) -> Any:
        called[name] += 1
        return original(*arguments, **options)

    return method


class World:
    """A driver in which every stage takes 10 ns, and clients who remember how often they were told."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now_ns = 0
        self.waiting: set[int] = set()
        self.received: list[int] = []
        self.restarts: list[EngineRestarted] = []
        self.replaced = 0
        self._running: list[tuple[int, StartStage]] = []

    def happens(self, event: AnyStimulus) -> None:
        request = getattr(event, "request", None)
        if request is not None:
            self.waiting.add(request.id)
        try:
            effects = self.engine.handle(event)
        except ValueError:
            assert isinstance(event, TopologyChanged | WorkerJoined)
            return
        for effect in effects:
            match effect:
                case StartStage():
                    self._running.append((self.now_ns, effect))
                case Fail() | Drop():
                    self._tell(effect.request_id)
                case PolicyReplaced():
                    self.replaced += 1
                case EngineRestarted():
                    self.restarts.append(effect)
                    self._running = [each for each in self._running if each[1].batch.id in effect.batches]
                    for request_id in effect.failed:
                        self._tell(request_id)

    def passes(self, until_ns: int) -> None:
        """Time, with all that is due in it."""
        while self.now_ns < until_ns:
            due = [started_ns + 10 for started_ns, _ in self._running]
            if (wake_ns := self.engine.next_wake_ns) is not None:
                due.append(wake_ns)
            self.now_ns = min(until_ns, max(self.now_ns + 1, min(due, default=until_ns)))
            over = [each for each in self._running if each[0] + 10 <= self.now_ns]
            for started_ns, effect in over:
                if (started_ns, effect) not in self._running:
                    continue
                self._running.remove((started_ns, effect))
                worker = effect.batch.stages[effect.stage].worker_id
                for request_id in effect.batch.request_ids:
                    self._tell(request_id)
                self.happens(StageFinished(self.now_ns, effect.batch.id, effect.stage, worker, started_ns, self.now_ns))
            wake_ns = self.engine.next_wake_ns
            if wake_ns is not None and wake_ns <= self.now_ns:
                self.happens(ClockAdvanced(self.now_ns))

    def loses(self, worker_id: int) -> None:
        self._running = [each for each in self._running if each[1].batch.stages[each[1].stage].worker_id != worker_id]
        self.happens(WorkerLost(self.now_ns, worker_id))

    def fails(self) -> None:
        if self._running:
            _, effect = self._running.pop()
            worker = effect.batch.stages[effect.stage].worker_id
            self.happens(BatchFailed(self.now_ns, effect.batch.id, effect.stage, worker, "x", retry=True))

    def cancels(self, request_id: int) -> None:
        if request_id in self.waiting:
            self._tell(request_id)
            self.happens(RequestCancelled(self.now_ns, request_id))

    def _tell(self, request_id: int) -> None:
        if request_id in self.waiting:
            self.waiting.discard(request_id)
            self.received.append(request_id)


def eventful(world: World) -> None:
    """Some of everything that an engine is told."""
    for number in range(20):
        event = arrived(
            number, world.now_ns, model="mn"[number % 2], due_ns=world.now_ns + 200 if number % 4 else NEVER_NS
        )
        shape = ("", "x:320", "x:640", "short")[number % 4]
        late_until_ns = world.now_ns + 250  # what is dropped may be served late
        request = replace(event.request, client="abc"[number % 3], shape=shape, app="x", late_until_ns=late_until_ns)
        request = replace(request, priority=1 + (number % 5 == 0), tenant="t" if number % 7 == 0 else "")
        request = replace(request, feature=float(number % 6))
        world.happens(RequestArrived(event.now_ns, request))
        if number % 9 == 0:
            world.passes(world.now_ns + 4)
    world.fails()
    world.cancels(min(world.waiting, default=0))
    world.cancels(max(world.waiting, default=0))
    world.happens(RetryLimitChanged(world.now_ns, 3))
    world.loses(0)
    world.passes(world.now_ns + 12)
    world.happens(WorkerJoined(world.now_ns, SETUP.workers[0]))
    world.fails()
    world.happens(ProfileUpdated(world.now_ns, PROFILES[0]))
    world.happens(TopologyChanged(world.now_ns, MODELS, SETUP.workers, PROFILES))
    for number in range(20, 44):  # enough of them to learn from
        event = arrived(number, world.now_ns, model="mn"[number % 2])
        world.happens(RequestArrived(event.now_ns, replace(event.request, app="x", feature=float(number))))
        world.cancels(number if number == 25 else -1)  # it runs
        world.passes(world.now_ns + 3)
    world.happens(PolicyOverran(world.now_ns, took_ns=30, within_ns=100, budget_ns=20))
    world.passes(world.now_ns + 400)


def assert_serves(world: World) -> None:
    """All have been told, once, and those that come now are answered."""
    assert sorted(world.received) == list(range(44))
    assert not world.waiting
    assert world.engine.tally.ended == world.engine.tally.accepted
    for number in range(100, 104):
        world.happens(arrived(number, world.now_ns))
    world.passes(world.now_ns + 200)
    assert not world.waiting
    assert len(world.restarts) <= 1
    assert world.engine.tally.answered >= 4
    assert (world.engine.queued, world.engine.in_flight) == (0, 0)


def once(original: Callable[..., Any], nth: int = 1) -> Callable[..., Any]:
    """What raises when it is called for the nth time, and is the original otherwise."""
    calls = count(1)

    def called(*arguments: Any, **options: Any) -> Any:
        if next(calls) == nth:
            raise RuntimeError("injected")
        return original(*arguments, **options)

    return called


@pytest.fixture(scope="module")
def calls() -> Counter[str]:
    """How often the run without a fault calls each method."""
    called: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patched:
        for where, name in METHODS:
            patched.setattr(where, name, noting(vars(where)[name], f"{where.__name__}.{name}", called))
        eventful(World(engine_of(Restless(SETUP, PolicyOptions()), strict=False, learn=True)))
    return called


@pytest.mark.parametrize("where", dict(METHODS), ids=lambda where: where.__name__)
def test_whichever_method_fails(where: type | ModuleType, calls: Counter[str], subtests: pytest.Subtests) -> None:
    for name, nth in product([name for owner, name in METHODS if owner is where], (1, 7)):
        if nth > calls[f"{where.__name__}.{name}"]:
            continue  # the fault would never be injected
        world = World(engine_of(Restless(SETUP, PolicyOptions()), strict=False, learn=True))
        with subtests.test(name, nth=nth):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(where, name, once(vars(where)[name], nth))
                eventful(world)
                assert_serves(world)
            assert all("injected" in restart.reason for restart in world.restarts)


@pytest.mark.parametrize("name", CHECKS)
def test_whichever_check_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(engine_of(FirstComeFirstServed(SETUP, PolicyOptions()), strict=False))
    monkeypatch.setattr(
        tidegate.engine.kernel.policy_runner, name, once(getattr(tidegate.engine.kernel.policy_runner, name))
    )
    eventful(world)
    assert_serves(world)


def test_most_methods_are_on_the_way(calls: Counter[str]) -> None:
    """The run above calls them: a fault that is never injected shows nothing."""
    missed = {f"{where.__name__}.{name}" for where, name in METHODS} - calls.keys()
    assert len(missed) < len(METHODS) / 4, sorted(missed)


def test_a_command_that_is_nonsense_costs_the_policy_its_place_and_nothing_else() -> None:
    nonsense: Any = None
    for command in (Dispatch(nonsense), run(nonsense), Dispatch(run(0).batch.__class__(0, "m", (0,), (nonsense,)))):
        engine = engine_of(Script([command]), strict=False)
        effects = engine.handle(arrived(0))
        assert [type(effect) for effect in effects] == [PolicyReplaced, StartStage]
        assert engine.decides == f"first come, first served, as {engine.name} broke"


def test_a_plan_that_is_refused_leaves_what_is_due_at_that_moment_undone_and_unlost() -> None:
    """Timers and planned starts due at the same time are not consumed by an event that is refused."""
    policy = Script([SetTimer("look", 10)], [run(0, at_ns=10)])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    with pytest.raises(ValueError, match="no profile of 'x'"):
        engine.handle(TopologyChanged(10, (MODELS[1],), (SETUP.workers[0].__class__(5, "w5", ("x",)),), ()))
    assert [type(effect) for effect in engine.handle(ClockAdvanced(10))] == [StartStage]


def test_a_policy_that_breaks_over_the_models_of_a_plan_refuses_it() -> None:
    class Particular(FirstComeFirstServed):
        @classmethod
        def check_models(cls, models: Any) -> None:
            raise TypeError("no idea what this is")

    engine = engine_of(Particular(SETUP, PolicyOptions()), strict=False)
    with pytest.raises(ValueError, match="the check of TopologyChanged broke: TypeError: no idea what this is"):
        engine.handle(TopologyChanged(10, MODELS, SETUP.workers, PROFILES))


def broken_at(name: str, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a method of `EventHandlers` raise when it is called for the nth time from now."""
    monkeypatch.setattr(EventHandlers, name, once(vars(EventHandlers)[name], nth))


def test_a_fault_fails_the_request_it_concerns_and_neither_what_runs_nor_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(FirstComeFirstServed(ONE_WORKER, PolicyOptions()), strict=False)
    (started,) = engine.handle(arrived(0, model="n"))
    assert isinstance(started, StartStage)
    engine.handle(arrived(1))
    broken_at("_arrive", 1, monkeypatch)
    (restarted,) = engine.handle(arrived(2, model="n"))
    assert restarted == EngineRestarted("script", "RuntimeError: injected", failed=(2,), batches=(started.batch.id,))
    assert (engine.queued, engine.in_flight) == (1, 1)
    engine.validate()
    (next_one,) = engine.handle(StageFinished(20, started.batch.id, 0, 0, 0, 20))
    assert isinstance(next_one, StartStage)
    assert next_one.batch.request_ids == (1,)
    assert next_one.batch.id > started.batch.id
    assert (engine.tally.answered, engine.tally.failed) == (1, 1)


def test_what_the_event_of_a_fault_ended_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(FirstComeFirstServed(ONE_WORKER, PolicyOptions()), strict=False)
    engine.handle(arrived(0))
    broken_at("_finish_stage", 1, monkeypatch)
    (restarted,) = engine.handle(StageFinished(20, 0, 0, 0, 0, 20))
    assert restarted == EngineRestarted("script", "RuntimeError: injected")
    assert engine.tally.answered == 1
    engine.validate()


def test_a_request_that_breaks_the_new_books_too_fails_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event is about none: each request that waits may be at fault, and one of them is."""
    engine = engine_of(FirstComeFirstServed(ONE_WORKER, PolicyOptions()), strict=False)
    for number in range(4):
        engine.handle(arrived(number))
    arrive = EventHandlers._arrive

    def breaks_over_two(intake: EventHandlers, event: RequestArrived) -> None:
        if event.request.id == 2:
            raise RuntimeError("injected")
        arrive(intake, event)

    monkeypatch.setattr(EventHandlers, "_arrive", breaks_over_two)
    broken_at("_update_profile", 1, monkeypatch)
    (restarted,) = engine.handle(ProfileUpdated(5, PROFILES[0]))
    assert restarted == EngineRestarted("script", "RuntimeError: injected", failed=(2,), batches=(0,))
    assert (engine.queued, engine.in_flight) == (2, 1)
    engine.validate()


def test_requests_that_see_fault_after_fault_fail_and_those_of_other_models_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What breaks the engine may wait in it: no event names it."""
    engine = engine_of(FirstComeFirstServed(ONE_WORKER, PolicyOptions()), strict=False)
    engine.handle(arrived(0))
    for number in range(1, 5):
        engine.handle(arrived(number, model="mn"[number % 2]))
    failed: list[int] = []
    for number in range(5, 8):
        with monkeypatch.context() as patched:
            broken_at("_arrive", 1, patched)
            (restarted,) = engine.handle(arrived(number, model="n"))
        assert isinstance(restarted, EngineRestarted)
        failed += restarted.failed
    assert sorted(failed) == [1, 3, 5, 6, 7]
    assert engine.queued == 2


def test_faults_without_end_fail_all_that_waits_and_the_engine_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(FirstComeFirstServed(ONE_WORKER, PolicyOptions()), strict=False)
    for number in range(9):
        engine.handle(arrived(number))
    with monkeypatch.context() as patched:
        patched.setattr(EventHandlers, "_arrive", lambda *_: 1 / 0)
        (restarted,) = engine.handle(arrived(9))
    assert isinstance(restarted, EngineRestarted)
    assert (restarted.failed, restarted.batches) == (tuple(range(1, 10)), (0,))
    assert [type(effect) for effect in engine.handle(StageFinished(20, 0, 0, 0, 0, 20))] == []
    assert [type(effect) for effect in engine.handle(arrived(10, 20))] == [StartStage]


def test_a_stage_of_a_pipeline_goes_on_after_a_fault_and_its_batch_reaches_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = two_stages(0)
    engine = engine_of(Script([first]), strict=False)
    assert engine.handle(arrived(0)) == [StartStage(first.batch, 0, 1)]
    broken_at("_arrive", 1, monkeypatch)
    engine.handle(arrived(1))
    engine.validate()
    (second,) = engine.handle(StageFinished(10, 0, 0, 0, 0, 10))
    assert second == StartStage(first.batch, 1, 1)
    engine.handle(StageFinished(20, 0, 1, 1, 10, 20))
    assert engine.tally.answered == 1
    engine.validate()
