"""The numbered invariants, one test each, over every installed policy (docs/reference/invariants.md)."""

import dataclasses
import io
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.examples import examples
from tidegate.api import (
    AnyCommand,
    AnyEvent,
    BatchFailed,
    ClockAdvanced,
    Commands,
    Dispatch,
    Drop,
    EngineSettings,
    LegFinished,
    PlanChanged,
    PolicySpec,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import Engine, Fail, InvariantViolation, PolicyReplaced, Recorder, StartLeg, read_log
from tidegate.engine.overlap import LONGEST_NS
from tidegate.host import Plugins, make_policy
from tidegate.sim import Simulation
from tidegate.testing import Scenario, random_scenario, run_scenario
from tidegate.testing.scenario import refused

PLUGINS = Plugins.installed()
every_policy = pytest.mark.parametrize("spec", PLUGINS.policies.values(), ids=lambda spec: spec.name)
RNG = st.randoms(use_true_random=False)
worlds = given(rng=RNG)
a_few = settings(max_examples=examples(0.1))


class Ledger(Simulation):
    """A driver that keeps books of its own: it knows only what clients, workers and effects tell it."""

    def __init__(self, engine: Engine, scenario: Scenario) -> None:
        super().__init__(engine, service=self._service_ns)
        changes = [event for event in scenario.events if isinstance(event, PlanChanged)]
        workers = itertools.chain(scenario.setup.workers, *(change.workers for change in changes))
        self._kinds = {worker.id: worker.kind for worker in workers}
        self._profiles = {(profile.partition, profile.kind): profile for profile in scenario.setup.profiles}
        self.intervals: list[tuple[int, int, int]] = []
        """(worker, start, end) of every leg that ran, cut short where its worker was lost or it was preempted."""
        self.open: dict[int, Request] = {}
        self.ended: Counter[str] = Counter()
        self._running: dict[int, StartLeg] = {}
        self._scenario = scenario
        self._legs_started = 0
        self._effects_seen = 0
        self.most_sent = 0
        """How many legs were on one worker at a time, running or on their way."""
        self.sent_behind: set[tuple[int, int]] = set()
        """(batch, leg) of those that were sent to a worker that ran another."""
        self.schedule(scenario.events)
        self.run()

    def outcome(self, effect: StartLeg, started_ns: int, ended_ns: int) -> LegFinished | BatchFailed:
        factors = self._scenario.service_factors
        number = self._legs_started
        self._legs_started += 1
        expected_ns = ended_ns - started_ns
        ended_ns = self.true_end(number, started_ns, max(1, round(expected_ns * factors[number % len(factors)])))
        worker_id = effect.batch.legs[effect.leg].worker_id
        self.intervals.append((worker_id, started_ns, ended_ns))
        if number in self._scenario.failures:
            failed = BatchFailed(ended_ns, effect.batch.id, effect.leg, worker_id, "made to fail", retry=True)
            return failed if number % 2 else refused(failed, effect.batch)
        return super().outcome(effect, started_ns, ended_ns)

    def true_end(self, number: int, started_ns: int, duration_ns: int) -> int:
        """When the n-th leg to start really ends."""
        return started_ns + duration_ns

    def _service_ns(self, effect: StartLeg) -> int:
        """What a leg was expected to take at first: what is learned must not feed on itself."""
        leg = effect.batch.legs[effect.leg]
        return self._profiles[leg.partition, self._kinds[leg.worker_id]].latency_ns(effect.rows)

    def _handle(self, event: AnyEvent) -> None:
        self._happened(event)
        super()._handle(event)
        for _, effect in self.effects[self._effects_seen :]:
            match effect:
                case StartLeg(batch=batch):
                    assert not any(
                        set(batch.request_ids) & set(other.batch.request_ids)
                        for other in self._running.values()
                        if other.batch.id != batch.id
                    ), "a request runs twice"
                    self._running[batch.id] = effect
                    workers = Counter(other.batch.legs[other.leg].worker_id for other in self._running.values())
                    self.most_sent = max(self.most_sent, *workers.values())
                    if workers[batch.legs[effect.leg].worker_id] > 1:
                        self.sent_behind.add((batch.id, effect.leg))
                case Fail(request_id=request_id):
                    self._end(request_id, "failed")
                case Drop(request_id=request_id):
                    self._end(request_id, "dropped")
        self._effects_seen = len(self.effects)

    def _happened(self, event: AnyEvent) -> None:
        match event:
            case RequestArrived():
                self.open[event.request.id] = event.request
            case RequestCancelled() if event.request_id in self.open:
                self._end(event.request_id, "cancelled")
            case LegFinished() if event.batch_id in self._running:
                batch = self._running.pop(event.batch_id).batch
                for request_id in set(batch.request_ids) & self.open.keys() if event.leg + 1 == len(batch.legs) else ():
                    self._end(request_id, "answered")
            case BatchFailed():
                self._running.pop(event.batch_id, None)
                self._cut_short(event.worker_id, event.now_ns)
            case WorkerLost():
                self._lose(event.now_ns, event.worker_id)
            case WorkerJoined():  # it was away, though nobody noticed
                self._lose(event.now_ns, event.worker.id)

    def _lose(self, now_ns: int, worker_id: int) -> None:
        self._running = {
            batch_id: running
            for batch_id, running in self._running.items()
            if running.batch.legs[running.leg].worker_id != worker_id
        }
        self._cut_short(worker_id, now_ns)

    def _cut_short(self, worker_id: int, now_ns: int) -> None:
        """What ran on a worker runs no more: it was lost, or preempted."""
        self.intervals = [
            (other, start, min(end, now_ns) if other == worker_id else end) for other, start, end in self.intervals
        ]

    def _end(self, request_id: int, how: str) -> None:
        del self.open[request_id]  # KeyError: it ended before
        self.ended[how] += 1


class Watch:
    """An observer that keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[AnyEvent, list[AnyCommand]]] = []

    def engine_started(self, policy: str, options: dict[str, Any], setup: Setup, settings: EngineSettings) -> None:
        pass

    def event_handled(self, event: AnyEvent, commands: list[AnyCommand]) -> None:
        self.seen.append((event, commands))

    def close(self) -> None:
        pass

    def dispatches(self) -> Iterator[tuple[int, Dispatch]]:
        for event, commands in self.seen:
            for command in commands:
                if isinstance(command, Dispatch):
                    yield event.now_ns, command


def run(
    spec: PolicySpec,
    scenario: Scenario,
    *,
    observer: Watch | Recorder | None = None,
    driver: Callable[[Engine, Scenario], Ledger] = Ledger,
    strict: bool = True,
    learn: bool = True,
) -> Ledger:
    engine = Engine(
        make_policy(spec, scenario.setup, {}),
        name=spec.name,
        strict=strict,
        learn=learn,
        observers=[observer] if observer else [],
        first_lead_ns=scenario.first_lead_ns,
    )
    return driver(engine, scenario)


def assert_nothing_lost(driver: Ledger, scenario: Scenario) -> None:
    tally = driver.engine.tally
    assert not driver.open, "requests that nobody ended"
    assert tally.accepted == sum(isinstance(event, RequestArrived) for event in scenario.events)
    assert driver.ended == Counter(
        answered=tally.answered, failed=tally.failed, cancelled=tally.cancelled, dropped=tally.dropped.total()
    )
    assert driver.ended.total() == tally.accepted
    assert driver.engine.queued == driver.engine.in_flight == 0


def world(spec: PolicySpec, rng: random.Random) -> Scenario:
    """A random one, every second time with split models if the policy takes them, now and then with a crowd."""
    scenario = random_scenario(rng, pipelines=spec.policy.runs_pipelines and rng.random() < 0.5)
    return crowded(rng, scenario) if rng.random() < 0.2 else scenario


def crowded(rng: random.Random, scenario: Scenario) -> Scenario:
    """The same with some of the requests sent several times at once, by other clients."""
    events: list[AnyEvent] = []
    first_id = 1 + max((event.request.id for event in scenario.events if isinstance(event, RequestArrived)), default=0)
    for event in scenario.events:
        events.append(event)
        if not isinstance(event, RequestArrived):
            continue
        for _ in range(rng.choice((0, 0, 1, 7))):
            another = replace(event.request, id=first_id + len(events), client=rng.choice("aaabbcdefg"))
            events.append(RequestArrived(event.now_ns, another))
    return dataclasses.replace(scenario, events=tuple(events))


def with_other_plans(rng: random.Random, scenario: Scenario) -> Scenario:
    """The same with other workers, and perhaps models less, from some instants on; some of them are lost then."""
    setup = scenario.setup
    models, workers = setup.models, setup.workers
    events = list(scenario.events)
    for number in range(rng.randint(1, 2)):
        now_ns = rng.randint(0, 250_000_000)
        if len(models) > 1 and rng.random() < 0.3:
            models = models[1:]
        partitions = sorted({part for model in models for path in model.paths for part in path.partitions})
        hosts = tuple(rng.sample(partitions, rng.randint(1, len(partitions))))
        added = (Worker(10 + number, f"added{number}", hosts), Worker(20 + number, f"all{number}", tuple(partitions)))
        workers = (
            *(worker for worker in workers if rng.random() < 0.7),
            *(replace(worker, kind=rng.choice(("fast", "slow"))) for worker in added if rng.random() < 0.5),
        )
        events.append(PlanChanged(now_ns, models, workers, setup.profiles, setup.network))
        if workers and rng.random() < 0.4:
            events.append(WorkerLost(now_ns + rng.randint(0, 50_000_000), rng.choice(workers).id))
    return dataclasses.replace(scenario, events=tuple(sorted(events, key=lambda event: event.now_ns)))


@every_policy
@worlds
@a_few
def test_1_conservation(spec: PolicySpec, rng: random.Random) -> None:
    scenario = world(spec, rng)
    assert_nothing_lost(run(spec, scenario), scenario)


@every_policy
@worlds
@a_few
def test_1_conservation_while_plans_change(spec: PolicySpec, rng: random.Random) -> None:
    """The policy that follows may have no worker yet for what waits: all of them have work of the one before."""
    scenario = with_other_plans(rng, world(spec, rng))
    assert_nothing_lost(run(spec, scenario), scenario)


@every_policy
@worlds
@a_few
def test_2_exclusivity(spec: PolicySpec, rng: random.Random) -> None:
    scenario = world(spec, rng)
    driver = run(spec, scenario)
    for (worker, _, end), (next_worker, next_start, _) in itertools.pairwise(sorted(driver.intervals)):
        assert worker != next_worker or end <= next_start
    assert driver.most_sent <= (2 if scenario.first_lead_ns and spec.policy.overlaps else 1)


@every_policy
@worlds
@a_few
def test_2_exclusivity_nothing_is_sent_long_before_the_leg_before_it_ends(spec: PolicySpec, rng: random.Random) -> None:
    """Where legs take as long as expected it can be told how early: no more than the lead, whatever is urgent then."""
    scenario = random_scenario(rng, disturbances=False, pipelines=spec.policy.runs_pipelines and rng.random() < 0.5)
    watch = Watch()
    driver = run(spec, scenario, observer=watch)
    sent = {(effect.batch.id, effect.leg): now_ns for now_ns, effect in driver.effects if isinstance(effect, StartLeg)}
    before: dict[int, LegFinished] = {}
    for event, _ in watch.seen:
        if isinstance(event, LegFinished):
            early_ns = event.started_ns - sent[event.batch_id, event.leg]
            if early_ns:
                ran_ns = before[event.worker_id].ended_ns - before[event.worker_id].started_ns
                assert early_ns <= min(LONGEST_NS, ran_ns)
            before[event.worker_id] = event


@every_policy
@worlds
@a_few
def test_3_causality(spec: PolicySpec, rng: random.Random) -> None:
    watch = Watch()
    driver = run(spec, world(spec, rng), observer=watch)
    for now_ns, effect in driver.effects:
        if isinstance(effect, StartLeg) and (effect.batch.id, effect.leg) not in driver.sent_behind:
            assert effect.batch.legs[effect.leg].start_ns <= now_ns, "as planned, or as planned anew"
    arrived = {event.request.id: event.now_ns for event, _ in watch.seen if isinstance(event, RequestArrived)}
    for decided_ns, dispatch in watch.dispatches():
        batch = dispatch.batch
        assert all(arrived[request_id] <= decided_ns for request_id in batch.request_ids)
        assert all(decided_ns <= leg.start_ns for leg in batch.legs)
        assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(batch.legs))


@every_policy
@worlds
@a_few
def test_4_monotone_clock(spec: PolicySpec, rng: random.Random) -> None:
    engine = run(spec, world(spec, rng)).engine
    now_ns = engine.now_ns + rng.randint(1, 1000)
    engine.handle(ClockAdvanced(now_ns))
    engine.handle(ClockAdvanced(now_ns))
    with pytest.raises(InvariantViolation, match=f"an event of {now_ns - 1} came after {now_ns}") as refused:
        engine.handle(ClockAdvanced(now_ns - 1))
    assert refused.value.number == 4
    assert engine.now_ns == now_ns


@every_policy
@worlds
@a_few
def test_5_no_oracle(spec: PolicySpec, rng: random.Random) -> None:
    scenario = world(spec, rng)
    horizon_ns = rng.randint(0, 250_000_000)
    delay_ns = rng.randint(1, 50_000_000)

    class OtherFuture(Ledger):
        """Whatever ends after the horizon ends at another instant after it."""

        def true_end(self, number: int, started_ns: int, duration_ns: int) -> int:
            ended_ns = super().true_end(number, started_ns, duration_ns)
            return ended_ns if ended_ns < horizon_ns else ended_ns + delay_ns * (number % 3)

    def until_the_horizon(driver: type[Ledger]) -> list[tuple[AnyEvent, list[AnyCommand]]]:
        watch = Watch()
        run(spec, scenario, observer=watch, driver=driver)
        return [(event, commands) for event, commands in watch.seen if event.now_ns < horizon_ns]

    assert until_the_horizon(Ledger) == until_the_horizon(OtherFuture)


@every_policy
@worlds
@a_few
def test_6_determinism(spec: PolicySpec, rng: random.Random) -> None:
    scenario = world(spec, rng)
    assert log_of(spec, scenario) == log_of(spec, scenario)


def test_6_determinism_across_processes() -> None:
    """The order of sets and of hashes of strings must not show."""
    program = f"import runpy; print(runpy.run_path({__file__!r})['digest_of_logs']())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
        for seed in ("1", "4")  # with which sets of the names of models have another order
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


@every_policy
@given(rng=RNG, learn=st.booleans())
@a_few
def test_7_parity(spec: PolicySpec, rng: random.Random, learn: bool) -> None:
    recorded = log_of(spec, world(spec, rng), learn=learn)
    header, entries = read_log(recorded.splitlines())
    replayed = io.BytesIO()
    policy = PLUGINS.make_policy(header.policy, header.setup, header.options)
    lead_ns = header.settings.first_lead_ns
    engine = Engine(policy, name=header.policy, learn=learn, observers=[Recorder(replayed)], first_lead_ns=lead_ns)
    for entry in entries:
        engine.handle(entry.event)
    assert replayed.getvalue() == recorded


@every_policy
@worlds
@a_few
def test_8_deadline_honesty(spec: PolicySpec, rng: random.Random) -> None:
    if spec.policy.best_effort:
        pytest.skip("declares itself best-effort")
    scenario = world(spec, rng)
    watch = Watch()
    run(spec, scenario, observer=watch, learn=False)
    requests = {event.request.id: event.request for event, _ in watch.seen if isinstance(event, RequestArrived)}
    kinds = {worker.id: worker.kind for worker in scenario.setup.workers}
    profiles = {(profile.partition, profile.kind): profile for profile in scenario.setup.profiles}
    for _, dispatch in watch.dispatches():
        batch = dispatch.batch
        taken = [requests[request_id] for request_id in batch.request_ids]
        rows = sum(request.rows for request in taken)
        expected_ns = sum(profiles[leg.partition, kinds[leg.worker_id]].latency_ns(rows) for leg in batch.legs)
        assert batch.legs[0].start_ns + expected_ns <= min(request.deadline_ns for request in taken)


@every_policy
@pytest.mark.parametrize("fault", ["raises", "gives an invalid command"])
@given(rng=RNG, nth=st.integers(0, 60))
@a_few
def test_9_isolation(spec: PolicySpec, fault: str, rng: random.Random, nth: int) -> None:
    calls = 0

    class Breaking(spec.policy):  # type: ignore[name-defined,misc]  # whichever policy is tried
        def handle(self, event: AnyEvent) -> Commands:
            nonlocal calls
            calls += 1
            commands: Commands = super().handle(event)
            if calls - 1 != nth:
                return commands
            if fault == "raises":
                raise RuntimeError("made to break")
            return [*commands, Drop(-1, "never queued")]

    scenario = world(spec, rng)
    driver = run(PolicySpec("breaking", "", Breaking), scenario, strict=False)
    assert_nothing_lost(driver, scenario)
    replaced = [effect for _, effect in driver.effects if isinstance(effect, PolicyReplaced)]
    assert len(replaced) == (calls > nth)
    assert all(effect.policy == "breaking" for effect in replaced)


@every_policy
@worlds
@a_few
def test_10_no_idle_refusal(spec: PolicySpec, rng: random.Random) -> None:
    if spec.policy.drops_in_time:
        pytest.skip(spec.policy.drops_in_time)
    run_scenario(spec, world(spec, rng))


def log_of(spec: PolicySpec, scenario: Scenario, *, learn: bool = True) -> bytes:
    log = io.BytesIO()
    run(spec, scenario, observer=Recorder(log), learn=learn)
    return log.getvalue()


def digest_of_logs() -> str:
    """Of every policy in a few worlds; the runs of another process are compared by it."""
    import hashlib

    digest = hashlib.sha256()
    for spec in PLUGINS.policies.values():
        for seed in range(8):
            rng = random.Random(seed)
            scenario = world(spec, rng)
            digest.update(log_of(spec, scenario))
            digest.update(log_of(spec, crowded(rng, scenario)))
    return digest.hexdigest()
