"""Random small worlds for conformance tests: models, workers, requests, cancellations, failures, slow and lost
workers.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import NormalDist
from typing import Any

import msgspec

from tidegate.api import (
    NEVER_NS,
    Batch,
    BatchFailed,
    Drop,
    Model,
    Network,
    Pipeline,
    PolicySpec,
    Profile,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
    ms_to_ns,
)
from tidegate.api.model import DeadlineMissAction
from tidegate.engine import AnyEffect, AnyStimulus, Engine, InvariantViolation, StartStage
from tidegate.host import make_policy
from tidegate.observation import Recorder
from tidegate.schemas import Device
from tidegate.sim import ExactWorkers, Listener, Simulation
from tidegate.sim.workers import Outcome, failed, finished

WORKER_CLASSES = ("fast", "slow")
DEADLINE_MISS_ACTIONS: tuple[DeadlineMissAction, ...] = ("reject", "reject", "serve")
TIMES_OF_SHAPE = {"": 1.0, "x:320": 1.0, "x:960": 1.8}
"""Latency factor of batches by shape; policies do not get it and learn it."""
SCATTER_CVS = (0.0, 0.1, 0.2, 0.35)
"""Coefficients of variation of stage durations in worlds with scatter."""
STALL_FACTOR = 10.0
"""Latency factor of a stalled stage."""
APPLICATION_MIXES = ("",) * 16, "a" * 16, "a" * 16 + "b" * 3 + "c"
"""Applications of a world's requests: none, one, or three, of which one is the majority."""
ROW_MIXES = ("few", "few", "log-normal", "1 or 16")
"""Distributions of a request's rows."""


@dataclass(frozen=True)
class ConformanceWorld:
    """A random world: the policy's setup, external events, and how true durations differ from profiles."""

    setup: Setup
    events: tuple[AnyStimulus, ...]
    """External events in order of time."""
    service_factors: tuple[float, ...]
    """Ratio of actual to expected duration of the n-th started stage (cyclic)."""
    failures: frozenset[int]
    """Numbers of the started stages that fail; some of their requests have ended by then."""
    first_lead_ns: int = 0
    """Initial lead of early dispatch in ns; 0: none."""


def random_world(rng: random.Random, *, disturbances: bool = True, pipelines: bool = False) -> ConformanceWorld:
    """Return a random world drawn from `rng`.

    `disturbances`: whether workers fail and disappear and durations vary. `pipelines`: whether some models are split
    into partitions, with a network between the nodes.
    """
    models = tuple(_model(rng, f"model{index}") for index in range(rng.randint(1, 3)))
    if pipelines:
        models = tuple(_split(rng, model) if rng.random() < 0.7 else model for model in models)
    partitions = {part: path.max_rows for model in models for path in model.paths for part in path.partitions}
    pools = 3 if pipelines and rng.random() < 0.4 else 1
    workers = tuple(
        _worker(rng, index, [*partitions], pools) for index in range(rng.randint(pools, 6 if pipelines else 4))
    )
    profiles = tuple(
        _profile(rng, part, rows, device_class) for part, rows in partitions.items() for device_class in WORKER_CLASSES
    )
    network = None
    if pipelines and rng.random() < 0.7:
        workers = tuple(
            msgspec.structs.replace(worker, device=Device(rng.choice("ab"), worker.id)) for worker in workers
        )
        network = Network({part: rng.randint(0, 1_000_000) for part in partitions}, bytes_per_s=1e9)
    rows, apps = rng.choice(ROW_MIXES), rng.choice(APPLICATION_MIXES)
    bursts = [rng.randint(0, 200) for _ in range(4)] if rng.random() < 0.25 else range(201)
    events: list[AnyStimulus] = [
        _arrival(rng, request_id, models, rows, apps, bursts) for request_id in range(rng.randint(0, 60))
    ]
    if disturbances:
        events += _disturbances(rng, events, workers)
    world = ConformanceWorld(
        setup=Setup(
            models, workers, profiles, seed=rng.randint(0, 9), network=network, no_slo_max_deferral_ns=ms_to_ns(20)
        ),
        events=tuple(sorted(events, key=lambda event: event.now_ns)),
        service_factors=_service_factors(rng) if disturbances else (1.0,),
        failures=frozenset(rng.sample(range(40), rng.randint(0, 3))) if disturbances else frozenset(),
    )
    clients = rng.choice(("a", "ab", "aaaab", "aaaabc"))
    events = [_from_one_of(clients, rng, event) for event in world.events]
    models = tuple(msgspec.structs.replace(model, merge_limit=rng.choice((None, None, 1, 3))) for model in models)
    setup = msgspec.structs.replace(world.setup, models=models)
    first_lead_ns = rng.choice((0, 0, ms_to_ns(1), ms_to_ns(4)))
    return replace(world, setup=setup, events=tuple(events), first_lead_ns=first_lead_ns)


class _MadeToFail:
    """The execution of a world's stages, in the order of their starts: some fail, all take other than planned."""

    def __init__(self, world: ConformanceWorld) -> None:
        self._world = world
        self._kinds = {worker.id: worker.device_class for worker in world.setup.workers}
        self._profiles = {(profile.partition, profile.device_class): profile for profile in world.setup.profiles}
        self._started = 0

    def __call__(self, effect: StartStage, started_ns: int) -> Outcome:
        number = self._started
        self._started += 1
        stage, factors = effect.batch.stages[effect.stage], self._world.service_factors
        profile = self._profiles[stage.partition, self._kinds[stage.worker_id]]
        factor = TIMES_OF_SHAPE[effect.shape] * factors[number % len(factors)]
        ended_ns = started_ns + max(1, round(profile.upper_ns(effect.rows) * factor))
        if number in self._world.failures:
            outcome = failed(effect, ended_ns, "made to fail", retry=True)
            return refused(outcome, effect.batch) if number % 2 else outcome
        return finished(effect, started_ns, ended_ns)


class _BooksAddUp:
    """A listener that raises InconsistentStateError after the event that leaves the engine's books contradicting each
    other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Look at all of them."""
        self._engine.validate()


class _DropsAreDue:
    """A listener that raises InvariantViolation where a request is dropped that could be answered (invariant 10)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests: dict[int, Request] = {}
        self._profiles = dict(engine.expectations.profiles)
        """Profiles before the event."""

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Check the requests that the event dropped."""
        if isinstance(event, RequestArrived):
            self._requests[event.request.id] = event.request
        engine = self._engine
        for effect in effects:
            # What an event taught, the policy may not have known when it dropped.
            if isinstance(effect, Drop) and engine.idle_on_time(
                request := self._requests[effect.request_id], self._profiles
            ):
                check_drop(engine, request)
        self._profiles = dict(engine.expectations.profiles)


def refused(failed: BatchFailed, batch: Batch) -> BatchFailed:
    """Return the failure of a batch with a suspected poison request: the halves are retried apart."""
    request_ids, half = batch.request_ids, len(batch.request_ids) // 2
    apart = (request_ids[:half], request_ids[half:]) if half else ()
    return msgspec.structs.replace(failed, retry=False, apart=apart)


def check_drop(engine: Engine, request: Request) -> None:
    """Check invariant 10 after a request was dropped: no idle worker would answer it on time.

    Raises InvariantViolation.
    """
    if worker := engine.idle_on_time(request, engine.expectations.profiles):
        raise InvariantViolation(
            10,
            f"request {request.id}, due at {request.deadline_ns}, is dropped at {engine.now_ns} though worker "
            f"{worker.name!r} is idle and would answer it on time",
        )


def run_world(
    spec: PolicySpec,
    world: ConformanceWorld,
    *,
    options: Mapping[str, Any] | None = None,
    recorder: Recorder | None = None,
) -> Simulation:
    """Run a policy through a world to its end.

    Raises InvariantViolation, or the policy's exception, at the first fault.

    `options`: of the policy; None: defaults. `recorder`: observer that writes the event log, if given.
    """
    policy = make_policy(spec, world.setup, dict(options or {}))
    observers = [recorder] if recorder else []
    engine = Engine(policy, name=spec.name, strict=True, observers=observers, first_lead_ns=world.first_lead_ns)
    listeners: list[Listener] = [_BooksAddUp(engine)]
    if not policy.early_drop_reason:
        listeners.append(_DropsAreDue(engine))
    simulation = Simulation(engine, ExactWorkers(_MadeToFail(world)), listeners=listeners)
    simulation.schedule(world.events)
    simulation.run()
    return simulation


def _model(rng: random.Random, name: str) -> Model:
    slo_ns = None if rng.random() < 0.2 else ms_to_ns(rng.randint(5, 100))
    late = rng.choice(DEADLINE_MISS_ACTIONS) if slo_ns else "reject"
    return Model(name, max_rows=rng.choice((1, 4, 16)), slo_ns=slo_ns, on_deadline_miss=late)


def _split(rng: random.Random, model: Model) -> Model:
    """One or two pipelines of two or three partitions; the widest takes what the model takes."""
    pipelines = tuple(
        Pipeline(
            tuple(f"{model.name}.{number}.{part}" for part in range(rng.randint(2, 3))),
            model.max_rows if number == 0 else rng.randint(1, model.max_rows),
        )
        for number in range(rng.randint(1, 2))
    )
    return msgspec.structs.replace(model, pipelines=pipelines)


def _service_factors(rng: random.Random) -> tuple[float, ...]:
    """How many times as long as planned stages take: otherwise, or scattered about it; in some worlds one stalls."""
    if rng.random() < 0.5:
        factors = [rng.uniform(0.7, 1.6) for _ in range(7)]
    else:
        cv = rng.choice(SCATTER_CVS)
        factors = [max(0.05, 1 + cv * _deviation(rng)) for _ in range(23)]
    if rng.random() < 0.2:
        factors[rng.randrange(len(factors))] *= STALL_FACTOR
    return tuple(factors)


def _deviation(rng: random.Random) -> float:
    """Draw from a normal distribution without its ends: hypothesis gives `gauss` any number, however large."""
    return NormalDist().inv_cdf(rng.uniform(0.001, 0.999))


def _worker(rng: random.Random, worker_id: int, partitions: Sequence[str], pools: int) -> Worker:
    # The first worker hosts everything, so that at the start nothing is without a home.
    if worker_id == 0:
        hosted = partitions
    elif pools > 1:
        hosted = partitions[worker_id % pools :: pools] or partitions
    else:
        hosted = rng.sample(partitions, rng.randint(1, len(partitions)))
    return Worker(worker_id, f"worker{worker_id}", tuple(sorted(hosted)), device_class=rng.choice(WORKER_CLASSES))


def _profile(rng: random.Random, partition: str, max_rows: int, device_class: str) -> Profile:
    slower = 2 if device_class == "slow" else 1
    alpha_ms, beta_ms = rng.uniform(0, 4) * slower, rng.uniform(0.1, 10) * slower
    return Profile.linear(partition, alpha_ms=alpha_ms, beta_ms=beta_ms, max_rows=max_rows, device_class=device_class)


def _arrival(
    rng: random.Random,
    request_id: int,
    models: tuple[Model, ...],
    rows_word: str,
    apps: Sequence[str],
    instants_ms: Sequence[int],
) -> RequestArrived:
    model = rng.choice(models)
    now_ns = ms_to_ns(rng.choice(instants_ms))
    deadline_ns = NEVER_NS if model.slo_ns is None else now_ns + model.slo_ns
    if rng.random() < 0.2:  # a client that says itself how long it waits, perhaps not at all
        deadline_ns = now_ns + ms_to_ns(rng.randint(0, 60))
    rows = min(_rows(rng, rows_word), model.max_rows)
    merge_key = rng.choice(("", "", "wide"))
    shape = "x:960" if merge_key else rng.choice(("", "", "x:320"))
    app = rng.choice(apps)
    request = Request(request_id, model.name, rows, now_ns, deadline_ns, merge_key, shape=shape, app=app)
    if model.on_deadline_miss == "serve" and deadline_ns != NEVER_NS:  # clients may leave before they are served late
        late_until_ns = rng.choice((NEVER_NS, NEVER_NS, deadline_ns, deadline_ns + ms_to_ns(rng.randint(1, 60))))
        request = msgspec.structs.replace(request, late_until_ns=late_until_ns)
    return RequestArrived(now_ns, request)


def _rows(rng: random.Random, word: str) -> int:
    match word:
        case "log-normal":
            return max(1, round(exp(1.0 + 0.8 * _deviation(rng))))
        case "1 or 16":
            return rng.choice((1, 1, 1, 16))
    return rng.randint(1, 3)


def _from_one_of(clients: str, rng: random.Random, event: AnyStimulus) -> AnyStimulus:
    if not isinstance(event, RequestArrived):
        return event
    request = msgspec.structs.replace(event.request, client=rng.choice(clients))
    return RequestArrived(event.now_ns, request)


def _disturbances(rng: random.Random, arrivals: list[AnyStimulus], workers: tuple[Worker, ...]) -> list[AnyStimulus]:
    events: list[AnyStimulus] = [
        RequestCancelled(arrival.now_ns + ms_to_ns(rng.randint(0, 30)), arrival.request.id)
        for arrival in arrivals
        if isinstance(arrival, RequestArrived) and rng.random() < 0.1
    ]
    for worker in workers:
        if rng.random() < 0.3:
            lost_ns = ms_to_ns(rng.randint(0, 150))
            events.append(WorkerLost(lost_ns, worker.id))
            if rng.random() < 0.7:
                events.append(WorkerJoined(lost_ns + ms_to_ns(rng.randint(1, 50)), worker))
    return events
