"""Workers take their next batch before the one that they run is over, and not too early."""

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.engine.script import Script, arrived
from tests.examples import examples, few
from tidegate.api import (
    NEVER_NS,
    AnyEvent,
    Batch,
    BatchFailed,
    Commands,
    Dispatch,
    Model,
    PolicyOptions,
    Profile,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Stage,
    StageFinished,
    Worker,
    WorkerDelayed,
    WorkerLost,
    WorkerReady,
    ms_to_ns,
)
from tidegate.engine import FIRST_LEAD_NS, CancelStage, ClockAdvanced, Engine, InvariantViolation, StartStage
from tidegate.engine.kernel.in_flight import MAX_LEAD_FRACTION, MAX_LEAD_NS
from tidegate.host import Plugins
from tidegate.observation import FirstResponse, TopologyChanged
from tidegate.sim import EventQueue, Simulation
from tidegate.sim.workers import Outcome
from tidegate.toolkit import FirstComeFirstServed

MS = ms_to_ns(1)
PLUGINS = Plugins.installed()
MODEL = Model("m", max_rows=4)
Duration = Callable[[int], int]
"""What the n-th execution takes."""


@pytest.fixture(autouse=True, scope="module")
def short_stages() -> Iterator[None]:
    """Stages are as short here as they are in timelines."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tidegate.engine.kernel.in_flight.MIN_STAGE_NS", 0)
        yield


class FarAway:
    """Workers at the end of a way; what arrives while one executes waits there for it."""

    def __init__(self, engine: Engine, execution_ns: Duration, *, there_ns: int, back_ns: int) -> None:
        self.engine = engine
        self._execution_ns = execution_ns
        self._there_ns, self._back_ns = there_ns, back_ns
        self._idle_since_ns: dict[int, int] = {}
        self.idle_ns: list[int] = []
        """Before each execution, how long its worker had had nothing to execute."""
        self.waited_ns: list[int] = []
        """How long each batch was there before it was executed."""

    def start(self, now_ns: int, effect: StartStage, agenda: EventQueue) -> None:
        worker_id = effect.batch.stages[effect.stage].worker_id
        there_ns = now_ns + self._there_ns
        idle_since_ns = self._idle_since_ns.get(worker_id, there_ns)
        starts_ns = max(there_ns, idle_since_ns)
        ends_ns = self._idle_since_ns[worker_id] = starts_ns + self._execution_ns(len(self.idle_ns))
        self.idle_ns.append(starts_ns - idle_since_ns)
        self.waited_ns.append(starts_ns - there_ns)
        back_ns = ends_ns + self._back_ns
        agenda.schedule(StageFinished(back_ns, effect.batch.id, effect.stage, worker_id, now_ns, back_ns))

    def cancel(self, now_ns: int, effect: CancelStage, agenda: EventQueue) -> None:
        raise NotImplementedError("nobody preempts here")

    def ended(self, outcome: Outcome, agenda: EventQueue) -> None:
        pass

    def responded(self, event: FirstResponse, agenda: EventQueue) -> None:
        raise NotImplementedError("nothing streams here")

    def forget(self, now_ns: int, worker_id: int, agenda: EventQueue) -> None:
        raise NotImplementedError("nobody is lost here")


def saturated(
    execution_ns: Duration,
    *,
    first_lead_ns: int = FIRST_LEAD_NS,
    policy: str = "fifs",
    workers: int = 1,
    there_ns: int = 300000,
    back_ns: int = 400000,
    requests: int = 1200,
    shapes: Sequence[str] = ("",),
) -> FarAway:
    """Far more than the workers can execute arrives at once, of each of the shapes in turn."""
    setup = Setup(
        (MODEL,),
        tuple(Worker(number, f"w{number}", ("m",)) for number in range(workers)),
        (Profile("m", "default", (2 * MS, 3 * MS, 4 * MS, 5 * MS)),),
    )
    made = PLUGINS.make_policy(policy, setup, {})
    engine = Engine(made, name=policy, strict=True, first_lead_ns=first_lead_ns)
    far_away = FarAway(engine, execution_ns, there_ns=there_ns, back_ns=back_ns)
    simulation = Simulation(engine, far_away)
    simulation.schedule(
        RequestArrived(0, Request(number, "m", 1, 0, NEVER_NS, shape=shapes[number % len(shapes)]))
        for number in range(requests)
    )
    simulation.run()
    assert engine.tally.answered == requests
    return far_away


def idle_share(workers: FarAway, execution_ns: int, *, after: int = 200) -> float:
    idle_ns = workers.idle_ns[after:]
    return sum(idle_ns) / (sum(idle_ns) + execution_ns * len(idle_ns))


@pytest.mark.parametrize("policy", few(["fifs", "symphony", "triton", "eager", "timeout", "clockwork"], 3))
@pytest.mark.parametrize("workers", [1, 3])
def test_a_saturated_worker_does_not_idle(policy: str, workers: int) -> None:
    seldom = saturated(lambda _: 2 * MS, policy=policy, workers=workers, first_lead_ns=0, requests=300)
    assert idle_share(seldom, 2 * MS, after=9) > 0.2
    far_away = saturated(lambda _: 2 * MS, policy=policy, workers=workers, requests=1400 * workers)
    assert idle_share(far_away, 2 * MS, after=150 * workers) < 0.01


def test_shapes_that_take_unlike_times_keep_it_busy_too() -> None:
    """Batches of two shapes in turn, of 2 and of 20 ms: how long one takes says nothing of the other."""
    far_away = saturated(lambda stage: (20 if stage % 2 else 2) * MS, requests=3000, shapes=("x:9", "x:90"))
    assert idle_share(far_away, 11 * MS, after=300) < 0.005
    assert max(far_away.waited_ns[300:]) < MS


@settings(max_examples=examples(0.1))
@given(execution_us=st.integers(1500, 20_000), there_us=st.integers(50, 2000), back_us=st.integers(50, 2000))
def test_what_is_sent_early_hardly_waits(execution_us: int, there_us: int, back_us: int) -> None:
    """Once the ways are learned: what is urgent could not have begun much sooner than the batch before it."""
    execution_ns, network_latency_ns = 1000 * execution_us, 1000 * (there_us + back_us)
    far_away = saturated(lambda _: execution_ns, there_ns=1000 * there_us, back_ns=1000 * back_us, requests=1200)
    assert max(far_away.waited_ns[200:]) <= network_latency_ns
    stages_ns = execution_ns + network_latency_ns
    # At most `MAX_LEAD_FRACTION` of what passes between two ends, which is shorter by as much as the batch is sent
    # early.
    reachable_ns = min(network_latency_ns, MAX_LEAD_NS, round(MAX_LEAD_FRACTION / (1 + MAX_LEAD_FRACTION) * stages_ns))
    assert sum(far_away.idle_ns[200:]) / 100 <= network_latency_ns - reachable_ns + 0.03 * stages_ns


@pytest.mark.parametrize(("cv", "less"), [(0.02, 0.3), (0.05, 0.7)])
def test_where_stages_scatter_a_little_workers_idle_less(cv: float, less: float) -> None:
    rng = random.Random(1)
    durations = [round(10 * MS * rng.lognormvariate(0, cv)) for _ in range(1200)]
    with_lead = saturated(durations.__getitem__)
    without = saturated(durations.__getitem__, first_lead_ns=0)
    assert sum(with_lead.idle_ns) < less * sum(without.idle_ns)
    assert max(with_lead.waited_ns[8:]) < 5 * MS


@pytest.mark.parametrize("cv", [0.02, 0.05])
def test_long_ways_are_learned_behind_long_stages_that_scatter_a_little(cv: float) -> None:
    """Their ends are less sure than the first lead is long."""
    rng = random.Random(1)
    durations = [round(40 * MS * rng.lognormvariate(-cv * cv / 2, cv)) for _ in range(1200)]
    with_lead = saturated(durations.__getitem__, there_ns=2 * MS, back_ns=2 * MS)
    without = saturated(durations.__getitem__, there_ns=2 * MS, back_ns=2 * MS, first_lead_ns=0)
    assert sum(with_lead.idle_ns) < 0.5 * sum(without.idle_ns)


def test_where_nobody_knows_when_stages_end_hardly_anything_is_sent_early() -> None:
    """What is sent behind a stage that goes on waits for long; others might have joined it, or another worker be
    idle."""
    rng = random.Random(1)
    durations = [round(10 * MS * rng.lognormvariate(-0.045, 0.3)) for _ in range(1200)]
    with_lead = saturated(durations.__getitem__)
    assert sum(with_lead.waited_ns) < 0.01 * sum(durations)


def test_what_is_learned_of_stages_stays_what_they_take_alone() -> None:
    far_away = saturated(lambda _: 5 * MS)
    (profile,) = far_away.engine.expectations.profiles.values()
    assert profile.upper_ns(4) == pytest.approx(5.7 * MS, rel=0.03)


# One worker, step by step ---------------------------------------------------------------------------------------------

SETUP = Setup((MODEL,), (Worker(0, "w0", ("m",)), Worker(1, "w1", ("m",))), (Profile("m", "default", (10_000,) * 4),))
LEAD = 1000


class Overlapping(Script):
    supports_pipelined_dispatch = True
    best_effort = True
    asked_about_workers = False
    """True: it answers WorkerReady, and nothing else."""

    def handle(self, event: AnyEvent) -> Commands:
        if not self.asked_about_workers:
            return super().handle(event)
        if isinstance(event, WorkerReady | WorkerDelayed):
            self.told_ready.append(event)
        else:
            self.received.append(event)
        return self.answers.popleft() if isinstance(event, WorkerReady) and self.answers else ()


def batch(number: int, start_ns: int, *, worker: int = 0, duration_ns: int = 10_000) -> Dispatch:
    return Dispatch(Batch(number, "m", (number,), (Stage(worker, "m", start_ns, duration_ns),)))


def finished(now_ns: int, number: int, *, sent_ns: int, worker: int = 0) -> StageFinished:
    return StageFinished(now_ns, number, 0, worker, sent_ns, now_ns)


def taught(last_takes_ns: int = 10_000, setup: Setup = SETUP) -> tuple[Engine, Overlapping]:
    """Three stages of 10 us have run alone on worker 0, until 30 us; a fourth runs since then, and one request waits.

    That one is planned to take `last_takes_ns`.
    """
    script = Overlapping(setup=setup)
    engine = Engine(script, name="script", strict=True, learn=False, first_lead_ns=LEAD)
    for number in range(4):
        now_ns = 10_000 * number
        script.answers.append([batch(number, now_ns, duration_ns=10_000 if number < 3 else last_takes_ns)])
        engine.handle(arrived(number, now_ns))
        if number < 3:
            script.answers.append(())
            engine.handle(finished(now_ns + 10_000, number, sent_ns=now_ns))
    script.told_ready.clear()
    script.answers.append(())
    engine.handle(arrived(4, 31_000))
    return engine, script


def test_a_worker_is_told_to_be_ready_a_lead_before_its_stage_ends_while_somebody_waits() -> None:
    engine, script = taught()
    assert engine.next_wake_ns == 39_000
    engine.handle(ClockAdvanced(39_000))
    assert script.told_ready == [WorkerReady(39_000, 0, 40_000)]  # of the ways nothing is known yet
    assert engine.next_wake_ns is None


def test_what_is_sent_behind_a_stage_counts_with_a_part_of_its_margin_besides_its_own() -> None:
    """The root of the sum of squares of two equal margins is sqrt(2) times one of them."""
    profile = Profile("m", "default", (10_000,) * 4, (12_000,) * 4)
    engine, script = taught(12_000, msgspec.structs.replace(SETUP, profiles=(profile,)))
    engine.handle(ClockAdvanced(39_000))
    assert script.told_ready == [WorkerReady(39_000, 0, 40_828)]
    engine.handle(arrived(5, 41_999))
    assert len(script.told_ready) == 1  # it is not late before it is planned to end
    engine.handle(arrived(6, 42_001))
    assert script.told_ready[1:] == [WorkerDelayed(42_001, 0)]


def test_a_stage_that_was_planned_without_a_margin_has_none_to_share() -> None:
    """Policies may plan with what they expect, as orloj does: what is sent behind a stage begins no sooner than
    that."""
    profile = Profile("m", "default", (10_000,) * 4, (12_000,) * 4)
    engine, script = taught(10_000, msgspec.structs.replace(SETUP, profiles=(profile,)))
    engine.handle(ClockAdvanced(39_000))
    assert script.told_ready == [WorkerReady(39_000, 0, 40_000)]


def test_nothing_is_sent_behind_a_stage_that_is_over_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.engine.kernel.in_flight.MIN_STAGE_NS", 10_001)
    engine, script = taught()
    assert engine.next_wake_ns is None
    engine.handle(ClockAdvanced(39_500))
    assert script.told_ready == []


def test_nobody_wakes_for_a_worker_for_which_nothing_waits() -> None:
    engine, script = taught()
    engine.handle(RequestCancelled(33_000, 4))
    assert engine.next_wake_ns is None
    engine.handle(arrived(5, 39_500))  # who comes when it is about to end finds it ready nevertheless
    assert script.told_ready == [WorkerReady(39_500, 0, 40_000)]


def test_what_is_dispatched_to_a_ready_worker_is_sent_at_once_and_one_only() -> None:
    engine, script = taught()
    engine.handle(ClockAdvanced(39_000))
    script.answers.append([batch(4, 40_000)])
    assert engine.handle(arrived(5, 39_200)) == [StartStage(batch(4, 40_000).batch, 0, 1)]
    script.answers.append([batch(5, 40_000)])
    with pytest.raises(InvariantViolation, match="overlaps what is booked on worker 0"):
        engine.handle(arrived(6, 39_300))


def test_nothing_is_dispatched_to_a_worker_that_is_not_ready_nor_for_before_it_is_free() -> None:
    engine, script = taught()
    script.answers.append([batch(4, 38_000)])
    with pytest.raises(InvariantViolation, match="overlaps what is booked on worker 0"):
        engine.handle(arrived(5, 38_000))
    engine, script = taught()
    engine.handle(ClockAdvanced(39_000))
    script.answers.append([batch(4, 39_999)])
    with pytest.raises(InvariantViolation, match="overlaps what is booked on worker 0"):
        engine.handle(arrived(5, 39_500))


def test_policies_that_do_not_overlap_are_told_when_the_stage_is_over() -> None:
    engine, script = taught()
    script.supports_pipelined_dispatch = False
    assert engine.next_wake_ns is None
    engine.handle(arrived(5, 39_500))
    assert script.told_ready == []
    engine.handle(finished(40_000, 3, sent_ns=30_000))
    assert script.told_ready == [WorkerReady(40_000, 0, 40_000)]


def test_a_worker_whose_stage_should_be_over_is_not_ready_any_more() -> None:
    engine, script = taught()
    engine.handle(ClockAdvanced(39_000))
    engine.handle(arrived(5, 40_001))
    assert script.told_ready == [WorkerReady(39_000, 0, 40_000), WorkerDelayed(40_001, 0)]
    engine.handle(finished(50_000, 3, sent_ns=30_000))
    assert script.told_ready[2:] == [WorkerReady(50_000, 0, 50_000)]


def test_a_policy_that_follows_is_not_told_of_a_worker_that_it_has_not_got(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was ready for the policy before, whose stage should be over."""
    engine, script = taught()
    engine.handle(ClockAdvanced(39_000))
    monkeypatch.setattr(script, "migrate", lambda _setup: script)
    engine.handle(TopologyChanged(39_500, SETUP.models, SETUP.workers, SETUP.profiles))
    script.told_ready.clear()
    engine.handle(arrived(5, 40_001))
    assert script.told_ready == []


def test_a_policy_leaves_a_worker_alone_whose_stage_should_be_over() -> None:
    """What comes while one worker hangs goes to the other as soon as that is free."""
    policy = FirstComeFirstServed(SETUP, PolicyOptions())
    engine = Engine(policy, name="fcfs", strict=True, learn=False, first_lead_ns=LEAD)
    for number in range(3):
        engine.handle(arrived(number, 10_000 * number))
        engine.handle(finished(10_000 * number + 10_000, number, sent_ns=10_000 * number))
    engine.handle(arrived(3, 30_000))
    (started,) = engine.handle(arrived(4, 35_000))
    assert isinstance(started, StartStage)
    assert started.batch.stages[0].worker_id == 1
    assert engine.handle(arrived(5, 40_500)) == []  # worker 0 hangs
    (started,) = engine.handle(finished(45_000, 4, sent_ns=35_000, worker=1))
    assert isinstance(started, StartStage)
    assert started.batch.stages[0].worker_id == 1


def test_of_two_workers_that_are_about_to_be_idle_one_is_left_for_who_comes_next() -> None:
    engine = Engine(FirstComeFirstServed(SETUP, PolicyOptions()), name="fcfs", learn=False, first_lead_ns=LEAD)
    for number in range(4):
        now_ns = 10_000 * number
        for worker in (0, 1):
            engine.handle(arrived(2 * number + worker, now_ns))
        for worker in (0, 1) if number < 3 else ():
            engine.handle(finished(now_ns + 10_000, 2 * number + worker, sent_ns=now_ns, worker=worker))
    started = [effect for number in (8, 9) for effect in engine.handle(arrived(number, 39_500 + number))]
    assert [effect.batch.stages[0].worker_id for effect in started if isinstance(effect, StartStage)] == [0, 1]


def on_its_way() -> tuple[Engine, Overlapping]:
    """Batch 3 runs on worker 0, batch 4 was sent behind it at 39 us; nothing else waits."""
    engine, script = taught()
    script.answers.append([batch(4, 40_000)])
    script.asked_about_workers = True
    engine.handle(ClockAdvanced(39_000))
    assert engine.in_flight == 2
    script.told_ready.clear()
    return engine, script


def test_a_stage_that_was_on_its_way_runs_from_the_end_of_the_one_before() -> None:
    engine, script = on_its_way()
    engine.handle(finished(42_000, 3, sent_ns=30_000))
    assert script.told_ready == []
    engine.handle(finished(51_000, 4, sent_ns=39_000))
    assert script.received[-1] == StageFinished(51_000, 4, 0, 0, 42_000, 51_000)
    assert script.told_ready == [WorkerReady(51_000, 0, 51_000)]


def test_the_one_before_may_fail_and_the_one_behind_runs_on() -> None:
    engine, script = on_its_way()
    engine.handle(BatchFailed(41_000, 3, 0, 0, "broken"))
    assert engine.in_flight == 1
    assert script.told_ready == []
    engine.handle(finished(51_000, 4, sent_ns=39_000))
    assert script.received[-1] == StageFinished(51_000, 4, 0, 0, 41_000, 51_000)


def test_what_follows_a_stage_that_runs_sooner_than_planned_is_behind_it_nevertheless() -> None:
    """Its own planned start may be before that of the stage that runs."""
    engine, script = taught(last_takes_ns=100_000)
    script.asked_about_workers = True
    script.answers.append([batch(4, 130_000)])
    engine.handle(ClockAdvanced(39_000))
    assert script.told_ready == [WorkerReady(39_000, 0, 130_000)]
    engine.handle(arrived(5, 39_500))
    engine.handle(finished(40_000, 3, sent_ns=30_000))
    script.answers.append([batch(5, 50_000)])
    engine.handle(ClockAdvanced(49_900))
    assert script.told_ready[1:] == [WorkerReady(49_900, 0, 50_000)]
    engine.handle(finished(50_000, 4, sent_ns=39_000))
    engine.handle(finished(60_000, 5, sent_ns=49_900))
    assert script.received[-1] == StageFinished(60_000, 5, 0, 0, 50_000, 60_000)
    assert engine.in_flight == 0


def test_a_stage_that_fails_on_its_way_leaves_its_place_to_another() -> None:
    engine, script = on_its_way()
    engine.handle(arrived(5, 39_400))
    script.answers.append([batch(5, 40_000)])
    assert StartStage(batch(5, 40_000).batch, 0, 1) in engine.handle(BatchFailed(39_500, 4, 0, 0, "refused at once"))
    assert script.told_ready == [WorkerReady(39_500, 0, 40_000)]
    engine.handle(finished(40_000, 3, sent_ns=30_000))
    engine.handle(finished(50_000, 5, sent_ns=39_500))
    assert script.received[-1] == StageFinished(50_000, 5, 0, 0, 40_000, 50_000)


def test_one_behind_that_ends_first_teaches_nothing_and_leaves_the_other_running() -> None:
    engine, script = on_its_way()
    engine.handle(finished(39_900, 4, sent_ns=39_000))
    assert script.told_ready == [WorkerReady(39_900, 0, 40_000)]
    engine.handle(finished(43_000, 3, sent_ns=30_000))
    assert script.received[-1] == StageFinished(43_000, 3, 0, 0, 30_000, 43_000)
    assert engine.in_flight == 0


def test_a_lost_worker_gives_back_what_ran_and_what_was_on_its_way() -> None:
    engine, script = on_its_way()
    engine.handle(WorkerLost(39_500, 0))
    assert engine.in_flight == 0
    assert engine.queued == 2
    assert script.told_ready == []
    assert [type(event) for event in script.received if isinstance(event, WorkerLost | BatchFailed)] == [
        WorkerLost,
        BatchFailed,
        BatchFailed,
    ]
