"""Builder of a simulation from a scenario: the policy's setup, and the simulated workers.

The policy does not see their true latency.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from tidegate.api import (
    NS_PER_MS,
    AnyEvent,
    LatencyDistribution,
    Model,
    Policy,
    Profile,
    ProfileKey,
    RequestArrived,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.control import Controller, ControlLoop, LayoutRevision
from tidegate.control.settings import TuningOptions
from tidegate.engine import FIRST_LEAD_NS, Engine, TopologyChanged
from tidegate.host import Plugins
from tidegate.observation import Observer
from tidegate.schemas import Interference, InterferenceModel, compute_percent, mig_instance
from tidegate.sim.cluster import Cluster
from tidegate.sim.control import SimulatedControl
from tidegate.sim.graphs import SimulatedGraphs
from tidegate.sim.links import Forwarding, NetworkLinks
from tidegate.sim.record import RunRecord
from tidegate.sim.simulation import Listener, Simulation
from tidegate.sim.slot_limits import SimulatedSlotLimits
from tidegate.sim.true_latency import (
    Combine,
    ConstantSlowdown,
    SimulatedWorker,
    SlotSlowdown,
    TrueLatency,
    drawing_delays,
    drawing_factors,
    drawing_failures,
)
from tidegate.sim.tuning.simulated_tuning import SimulatedTuning
from tidegate.workload import RequestSequence, Scenario, layout_of, stream
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.simulated import NetworkSpec, StartupSpec
from tidegate.workload.workers import devices_of

MAX_IDLE_TIMERS = 100_000
"""Maximum number of timers that fire in a row while nothing runs and requests wait."""

TIME_POINTS = 128
"""Number of points of an application's latency distribution that policies get."""


def setup_of(scenario: Scenario, seed: int) -> Setup:
    """Return the policy's setup for a scenario and a seed."""
    models, workers, profiles, network = layout_of(scenario).contract()
    return Setup(
        models=models_as_asked(scenario, models),
        workers=tuple(slots_among(scenario, workers)),
        profiles=tuple(with_shapes(scenario, profiles, known_to_policy=True)),
        seed=seed,
        network=network,
        latency_distributions=tuple(_known_distributions(scenario, profiles)),
    )


def models_as_asked(scenario: Scenario, models: Iterable[Model]) -> tuple[Model, ...]:
    """Return the models of a layout with the scenario's settings that the layout lacks."""
    alone = {model.name for model in scenario.models if model.scheduling == "unbatched"}
    late = {model.name: model.on_deadline_miss for model in scenario.models}
    streaming = {model.name for model in scenario.models if model.streaming}
    return tuple(
        replace(
            model,
            on_deadline_miss=late[model.name],
            merge_limit=1 if model.name in alone | streaming else model.merge_limit,
            streams=model.name in streaming,
        )
        for model in models
    )


def slots_among(scenario: Scenario, workers: Iterable[Worker]) -> Iterator[Worker]:
    """Yield these workers; those that host streaming models only are slots of their device."""
    streaming = {model.name for model in scenario.models if model.streaming}
    for worker in workers:
        is_slot = worker.device is not None and streaming.issuperset(worker.hosts)
        yield replace(worker, server=f"{worker.node}/{worker.device.id}") if is_slot and worker.device else worker


def _known_distributions(scenario: Scenario, profiles: Iterable[Profile]) -> Iterator[LatencyDistribution]:
    """Yield the distributions of the applications that policies know, on every device class.

    A batch takes `c0 + k * max(row)`, with c0 the fixed cost of the model's true profile and for each request what its
    row adds: the profile's slope and what it carries. Policies get c1 = 1 - c0 / (mean stand-alone time) and times of
    which c1 is what the rows add: stretched about the mean, so that the law of `LatencyDistribution` is exact.
    """
    apps = {model.name: (model, [app for app in model.apps if app.known_to_policy]) for model in scenario.models}
    for profile in true_profiles(scenario, profiles):
        model, known = apps.get(profile.partition, (None, []))
        if model is None or not known:
            continue
        fixed_ns = profile.fixed_cost_ns
        slope_ns = profile.expected_ns(1) - fixed_ns
        rows_ns = {
            app.name: [
                slope_ns + NS_PER_MS * (app.time_ms or model.time_ms).quantile((2 * point + 1) / (2 * TIME_POINTS))
                for point in range(TIME_POINTS)
            ]
            for app in known
        }
        weight = sum(app.weight for app in known)
        mean_ns = sum(app.weight * sum(rows_ns[app.name]) for app in known) / (TIME_POINTS * weight)
        scale = mean_ns / (fixed_ns + mean_ns)
        for name, points_ns in rows_ns.items():
            times_ns = tuple(max(1, round(row_ns / scale)) for row_ns in points_ns)
            yield LatencyDistribution(model.name, name, profile.device_class, times_ns, fixed_ns, scale)


def with_shapes(scenario: Scenario, profiles: Iterable[Profile], *, known_to_policy: bool) -> Iterator[Profile]:
    """Return these profiles with those of the models' shapes; `known_to_policy`: only those that policies know."""
    shapes = {name: model.shapes for model in scenario.models for name in model.partitions}
    for profile in profiles:
        yield profile
        for shape in shapes.get(profile.partition, ()):
            if shape.known_to_policy or not known_to_policy:
                yield shape.profile_from(profile)


def simulation_of(
    scenario: Scenario,
    policy: Policy,
    requests: RequestSequence,
    record: RunRecord,
    *,
    name: str,
    seed: int,
    observers: Sequence[Observer] = (),
    controller: Controller | None = None,
    plugins: Plugins | None = None,
) -> Simulation:
    """Return a simulation that is ready to run; it ends early once its record is hopeless.

    `policy` is called `name` in reports; its exceptions are raised. `record`: receives the outcomes. `seed`: seed of
    the workers' random streams. `controller`: the controller of the scenario, if it names one.
    `plugins`: source of policies that replace a tuned one; None: it is not tuned.
    """
    spec, network = scenario.simulation, policy.setup.network
    is_away = any(pool.network for pool in scenario.workers)
    first_lead_ns = FIRST_LEAD_NS if is_away else 0  # who is there at once is sent nothing in advance
    engine = Engine(
        policy,
        name=name,
        strict=True,
        learn=spec.learn,
        observers=observers,
        first_lead_ns=first_lead_ns,
        priority_floors=scenario.priority_floors,
        policies=plugins.make_policy if plugins else None,
    )
    workers = policy.setup.workers
    combine: dict[str, Combine] = {model: service.combine for model, service in spec.service.items()}
    true = true_profiles(scenario, (profile for profile in policy.setup.profiles if not profile.shape))
    tables: dict[ProfileKey, Sequence[int]] = {
        profile.key: _table_ns(profile) for profile in with_shapes(scenario, true, known_to_policy=False)
    }
    links = None if network is None else NetworkLinks(network, {worker.id: worker.node for worker in workers})
    networks = [pool.network for pool, _ in devices_of(scenario.workers)] or [None] * len(workers)
    cluster = Cluster(
        [simulated_worker(scenario, worker, seed, delays) for worker, delays in zip(workers, networks, strict=True)],
        TrueLatency(tables, requests.times_ms, combine, requests.shapes, requests.rest_ns),
        interference=SlotSlowdown(spec.slot_slowdown) if spec.slot_slowdown else _interference(spec.interference),
        retry=spec.failures is None or spec.failures.retry,
        links=links,
    )
    graphs = _graphs_of(scenario, engine, record, len(requests), policy.setup.models)
    engine.reducer.add_listener(graphs or record)
    listeners: list[Listener] = [] if links is None else [Forwarding(engine, links)]
    control = None
    if controller is not None and scenario.controller is not None:
        layout_switch = _LayoutSwitch(scenario, seed, cluster, tables, links, record)
        loop = ControlLoop(scenario.controller, layout_of(scenario), engine.reducer.open.values)
        control = SimulatedControl(
            controller,
            loop,
            engine,
            switch=layout_switch.switch,
            startup=partial(_startup, scenario.simulation.startup, seed),
            until_ns=round((scenario.warmup_s + scenario.duration_s) * NS_PER_S),
        )
        engine.reducer.add_listener(loop.monitor)
        listeners.append(control)
    slot_limits = None
    if any(pool.slots == "auto" for pool in scenario.workers):
        slot_limits = SimulatedSlotLimits(
            scenario,
            policy.setup,
            requests,
            cluster,
            record,
            lambda worker, delays: simulated_worker(scenario, worker, seed, delays),
        )
        listeners.append(slot_limits)
    tuning = None
    if plugins is not None and isinstance(policy.options, TuningOptions):
        until_ns = round((scenario.warmup_s + scenario.duration_s) * NS_PER_S)
        tuning = SimulatedTuning(engine, policy.options, plugins, until_ns=until_ns)
        listeners.append(tuning)
    simulation = Simulation(engine, cluster, listeners=listeners, patience=MAX_IDLE_TIMERS, enough=record.enough)
    for acting in (control, tuning, graphs, slot_limits):
        if acting is not None:
            acting.begin(simulation.agenda)
    simulation.schedule(_events(scenario, workers))
    if graphs is not None:
        simulation.feed(graphs.arrivals(requests))
    else:
        simulation.feed(RequestArrived(request.arrival_ns, request) for request in requests)
    return simulation


@dataclass(frozen=True)
class _LayoutSwitch:
    """Base state of simulated workers, extended when the layout changes."""

    scenario: Scenario
    seed: int
    cluster: Cluster
    tables: dict[ProfileKey, Sequence[int]]
    """True latency tables of batches."""
    links: NetworkLinks | None
    record: RunRecord

    def switch(self, now_ns: int, revision: LayoutRevision) -> TopologyChanged:
        """Add the workers of a revision; return the event for the engine."""
        models, workers, profiles, network = revision.contract()
        new = [worker for worker in workers if worker.id not in self.cluster]
        self.cluster.add(simulated_worker(self.scenario, worker, self.seed, self.delays(worker)) for worker in new)
        self.record.joined_workers |= {worker.id: worker.name for worker in new}
        true = with_shapes(self.scenario, true_profiles(self.scenario, profiles), known_to_policy=False)
        for profile in true:
            if len(self.tables.get(profile.key, ())) < profile.max_rows:
                self.tables[profile.key] = _table_ns(profile)
        if self.links is not None and network is not None:
            self.links.extend(network, {worker.id: worker.node for worker in workers})
            network = self.links.network
        known = tuple(with_shapes(self.scenario, profiles, known_to_policy=True))
        return TopologyChanged(now_ns, models_as_asked(self.scenario, models), workers, known, network)

    def delays(self, worker: Worker) -> NetworkSpec | None:
        """The delays between the scheduler and a worker: those of the first entry for its kind."""
        return next((pool.network for pool in self.scenario.workers if pool.device_class == worker.device_class), None)


def _graphs_of(
    scenario: Scenario, engine: Engine, record: RunRecord, first_id: int, models: Iterable[Model]
) -> SimulatedGraphs | None:
    return SimulatedGraphs(scenario.graphs, models, engine, record, first_id) if scenario.graphs else None


def _table_ns(profile: Profile) -> tuple[int, ...]:
    return tuple(map(profile.expected_ns, range(1, profile.max_rows + 1)))


def _startup(spec: StartupSpec, seed: int, worker_id: int) -> int | None:
    """How many ns a worker takes until it is warm; None: it never is."""
    rng = stream(seed, "startup", worker_id)
    fails = rng.random() < spec.fails
    took_ns = round(max(0.0, spec.time_s.drawing_from(rng)()) * NS_PER_S)
    return None if fails else took_ns


def simulated_worker(
    scenario: Scenario, worker: Worker, seed: int, network: NetworkSpec | None = None
) -> SimulatedWorker:
    """Return a simulated worker with its own random streams, drawn from `seed`.

    `network`: delays between it and the scheduler; None: no delays.
    """
    simulation = scenario.simulation
    return SimulatedWorker(
        id=worker.id,
        device_class=worker.device_class,
        gpu=_shared_with_others(worker),
        percent=compute_percent(worker.slice),
        jitter=drawing_factors(simulation.jitter, simulation.stalls, seed, worker.id),
        delay_ns=drawing_delays(network, seed, worker.id),
        fails=drawing_failures(simulation.failures, seed, worker.id),
    )


def _interference(given: float | InterferenceModel) -> Interference | None:
    """How neighbors slow each other down; None: they do not."""
    if isinstance(given, InterferenceModel):
        return given
    return ConstantSlowdown(given) if given > 1 else None


def _shared_with_others(worker: Worker) -> Hashable:
    """Return the resource that a worker shares with those that slow it down: its device or MIG instance."""
    instance = mig_instance(worker.slice)
    return (worker.device, instance) if instance else worker.device


def true_profiles(scenario: Scenario, expected: Iterable[Profile]) -> Iterator[Profile]:
    """Return the true latency tables of batches for each profile that policies get."""
    for profile in expected:
        service = scenario.simulation.service.get(profile.partition)
        spec = service and service.profile_on(profile.device_class)
        yield spec.build(profile.partition, profile.device_class, profile.max_rows) if spec else profile


def _events(scenario: Scenario, workers: Sequence[Worker]) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    for event in scenario.simulation.events:
        now_ns = round((scenario.warmup_s + event.at_s) * NS_PER_S)
        who = event.lost if event.lost is not None else event.joined
        for worker in workers:
            if who in (worker.id, worker.node):
                lost = event.lost is not None
                events.append(WorkerLost(now_ns, worker.id) if lost else WorkerJoined(now_ns, worker))
    return sorted(events, key=lambda event: event.now_ns)
