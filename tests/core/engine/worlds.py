"""Random worlds for every policy, a driver that keeps books of its own, and an observer that remembers."""

import dataclasses
import io
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from tidegate.api import (
    AnyCommand,
    BatchFailed,
    Dispatch,
    Drop,
    PolicySpec,
    Request,
    RequestArrived,
    RequestCancelled,
    StageFinished,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import AnyEffect, AnyStimulus, Engine, Fail, StartStage, TopologyChanged
from tidegate.host import make_policy
from tidegate.observation import Observer, ObserverOptions, Recorder
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.workers import Outcome, failed, finished
from tidegate.testing import ConformanceWorld, random_world
from tidegate.testing.world import refused


class Ledger:
    """A listener that keeps books of its own: it knows only what clients, workers and effects tell it."""

    def __init__(self, engine: Engine, scenario: ConformanceWorld) -> None:
        self.engine = engine
        self.effects: list[tuple[int, AnyEffect]] = []
        changes = [event for event in scenario.events if isinstance(event, TopologyChanged)]
        workers = itertools.chain(scenario.setup.workers, *(change.workers for change in changes))
        self._kinds = {worker.id: worker.device_class for worker in workers}
        self._profiles = {(profile.partition, profile.device_class): profile for profile in scenario.setup.profiles}
        self.intervals: list[tuple[int, int, int]] = []
        """(worker, start, end) of every stage that ran, cut short where its worker was lost or it was preempted."""
        self._latest: dict[int, int] = {}
        """By batch, where among these its latest stage is."""
        self.open: dict[int, Request] = {}
        self.ended: Counter[str] = Counter()
        self._running: dict[int, StartStage] = {}
        self._scenario = scenario
        self._stages_started = 0
        self.most_sent = 0
        """How many stages were on one worker at a time, running or on their way."""
        self.sent_behind: set[tuple[int, int]] = set()
        """(batch, stage) of those that were sent to a worker that ran another."""
        simulation = Simulation(engine, ExactWorkers(self._execute), listeners=[self])
        simulation.schedule(scenario.events)
        simulation.run()

    def _execute(self, effect: StartStage, started_ns: int) -> Outcome:
        factors = self._scenario.service_factors
        number = self._stages_started
        self._stages_started += 1
        duration_ns = max(1, round(self._service_ns(effect) * factors[number % len(factors)]))
        ended_ns = self.true_end(number, started_ns, duration_ns)
        worker_id = effect.batch.stages[effect.stage].worker_id
        self._latest[effect.batch.id] = len(self.intervals)
        self.intervals.append((worker_id, started_ns, ended_ns))
        if number in self._scenario.failures:
            outcome = failed(effect, ended_ns, "made to fail", retry=True)
            return outcome if number % 2 else refused(outcome, effect.batch)
        return finished(effect, started_ns, ended_ns)

    def true_end(self, number: int, started_ns: int, duration_ns: int) -> int:
        """When the n-th stage to start really ends."""
        return started_ns + duration_ns

    def _service_ns(self, effect: StartStage) -> int:
        """What a stage was expected to take at first: what is learned must not feed on itself."""
        stage = effect.batch.stages[effect.stage]
        return self._profiles[stage.partition, self._kinds[stage.worker_id]].upper_ns(effect.rows)

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        self.engine.validate()
        self._happened(event)
        for effect in effects:
            self.effects.append((event.now_ns, effect))
            match effect:
                case StartStage(batch=batch):
                    assert not any(
                        set(batch.request_ids) & set(other.batch.request_ids)
                        for other in self._running.values()
                        if other.batch.id != batch.id
                    ), "a request runs twice"
                    self._running[batch.id] = effect
                    workers = Counter(other.batch.stages[other.stage].worker_id for other in self._running.values())
                    self.most_sent = max(self.most_sent, *workers.values())
                    if workers[batch.stages[effect.stage].worker_id] > 1:
                        self.sent_behind.add((batch.id, effect.stage))
                case Fail(request_id=request_id):
                    self._end(request_id, "failed")
                case Drop(request_id=request_id):
                    self._end(request_id, "dropped")

    def _happened(self, event: AnyStimulus) -> None:
        match event:
            case RequestArrived():
                self.open[event.request.id] = event.request
            case RequestCancelled() if event.request_id in self.open:
                self._end(event.request_id, "cancelled")
            case StageFinished() if event.batch_id in self._running:
                batch = self._running.pop(event.batch_id).batch
                for request_id in (
                    set(batch.request_ids) & self.open.keys() if event.stage + 1 == len(batch.stages) else ()
                ):
                    self._end(request_id, "answered")
            case BatchFailed():
                if self._running.pop(event.batch_id, None):
                    self._cut_short(self._latest[event.batch_id], event.now_ns)
            case WorkerLost():
                self._lose(event.now_ns, event.worker_id)
            case WorkerJoined():  # it was away, though nobody noticed
                self._lose(event.now_ns, event.worker.id)

    def _lose(self, now_ns: int, worker_id: int) -> None:
        for batch_id, running in list(self._running.items()):
            if running.batch.stages[running.stage].worker_id == worker_id:
                del self._running[batch_id]
                self._cut_short(self._latest[batch_id], now_ns)

    def _cut_short(self, index: int, now_ns: int) -> None:
        """A stage runs no more: it was preempted, or its worker was lost; perhaps before it began."""
        worker_id, start_ns, end_ns = self.intervals[index]
        self.intervals[index] = (worker_id, min(start_ns, now_ns), min(end_ns, now_ns))

    def _end(self, request_id: int, how: str) -> None:
        del self.open[request_id]  # KeyError: it ended before
        self.ended[how] += 1


class Watch(Observer):
    """An observer that keeps what it sees."""

    def __init__(self) -> None:
        super().__init__(ObserverOptions())
        self.seen: list[tuple[AnyStimulus, Sequence[AnyCommand]]] = []

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        self.seen.append((event, commands))

    def dispatches(self) -> Iterator[tuple[int, Dispatch]]:
        for event, commands in self.seen:
            for command in commands:
                if isinstance(command, Dispatch):
                    yield event.now_ns, command


def run(
    spec: PolicySpec,
    scenario: ConformanceWorld,
    *,
    observer: Watch | Recorder | None = None,
    driver: Callable[[Engine, ConformanceWorld], Ledger] = Ledger,
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


def assert_nothing_lost(driver: Ledger, scenario: ConformanceWorld) -> None:
    tally = driver.engine.tally
    assert not driver.open, "requests that nobody ended"
    assert tally.accepted == sum(isinstance(event, RequestArrived) for event in scenario.events)
    assert driver.ended == Counter(
        answered=tally.answered, failed=tally.failed, cancelled=tally.cancelled, dropped=tally.dropped.total()
    )
    assert driver.ended.total() == tally.accepted
    assert driver.engine.queued == driver.engine.in_flight == 0


def world(spec: PolicySpec, rng: random.Random) -> ConformanceWorld:
    """A random one, every second time with split models if the policy takes them, now and then with a crowd."""
    scenario = random_world(rng, pipelines=spec.policy.runs_pipelines and rng.random() < 0.5)
    return crowded(rng, scenario) if rng.random() < 0.2 else scenario


def crowded(rng: random.Random, scenario: ConformanceWorld) -> ConformanceWorld:
    """The same with some of the requests sent several times at once, by other clients."""
    events: list[AnyStimulus] = []
    first_id = 1 + max((event.request.id for event in scenario.events if isinstance(event, RequestArrived)), default=0)
    for event in scenario.events:
        events.append(event)
        if not isinstance(event, RequestArrived):
            continue
        for _ in range(rng.choice((0, 0, 1, 7))):
            another = replace(event.request, id=first_id + len(events), client=rng.choice("aaabbcdefg"))
            events.append(RequestArrived(event.now_ns, another))
    return dataclasses.replace(scenario, events=tuple(events))


def with_other_plans(rng: random.Random, scenario: ConformanceWorld) -> ConformanceWorld:
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
            *(replace(worker, device_class=rng.choice(("fast", "slow"))) for worker in added if rng.random() < 0.5),
        )
        events.append(TopologyChanged(now_ns, models, workers, setup.profiles, setup.network))
        if workers and rng.random() < 0.4:
            events.append(WorkerLost(now_ns + rng.randint(0, 50_000_000), rng.choice(workers).id))
    return dataclasses.replace(scenario, events=tuple(sorted(events, key=lambda event: event.now_ns)))


def log_of(spec: PolicySpec, scenario: ConformanceWorld, *, learn: bool = True) -> bytes:
    log = io.BytesIO()
    run(spec, scenario, observer=Recorder(log), learn=learn)
    return log.getvalue()
