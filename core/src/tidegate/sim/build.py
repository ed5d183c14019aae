"""From a scenario to a run: the setup that policies are told, and the cluster that they do not see."""

from collections.abc import Iterator, Sequence

from tidegate.api import (
    AnyEvent,
    Model,
    Network,
    Observer,
    Pipeline,
    Policy,
    Profile,
    RequestArrived,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
    ms_to_ns,
)
from tidegate.engine import FIRST_LEAD_NS, Engine
from tidegate.sim.cluster import Cluster
from tidegate.sim.links import Forwarding, Links
from tidegate.sim.record import Record
from tidegate.sim.simulation import Listener, Simulation
from tidegate.sim.truth import Combine, SimulatedWorker, Truth, drawing_delays, drawing_failures, drawing_jitter
from tidegate.workload import RequestSequence, Scenario
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.scenario import ModelSpec

PATIENCE = 100_000
"""How often timers may fire in a row while nothing runs and requests wait."""


def setup_of(scenario: Scenario, seed: int) -> Setup:
    """What a policy is told at the start."""
    names = tuple(sorted(scenario.partitions))
    workers = tuple(
        Worker(
            worker.id,
            f"{worker.node}/{worker.kind}-{worker.id}",
            tuple(sorted(hosts)) if hosts else names,
            worker.kind,
            worker.node,
        )
        for worker, hosts in _placed(scenario, seed)
    )
    return Setup(
        models=tuple(map(_model_of, scenario.models)),
        workers=workers,
        profiles=_profiles(scenario, workers, truth=False),
        seed=seed,
        network=_network_of(scenario),
    )


def _model_of(spec: ModelSpec) -> Model:
    return Model(
        spec.name,
        spec.max_rows,
        None if spec.slo_ms is None else ms_to_ns(spec.slo_ms),
        tuple(
            Pipeline(tuple(part.name for part in pipeline.partitions), pipeline.batch) for pipeline in spec.pipelines
        ),
        1 if spec.batch == "alone" else None,
    )


def _network_of(scenario: Scenario) -> Network | None:
    if scenario.network is None:
        return None
    sizes = {name: part.output_bytes for name, (part, _) in scenario.partitions.items()}
    return Network(sizes, scenario.network.gbps * 1e9 / 8, ms_to_ns(scenario.network.latency_ms))


def simulation_of(
    scenario: Scenario,
    policy: Policy,
    requests: RequestSequence,
    record: Record,
    *,
    name: str,
    seed: int,
    observers: Sequence[Observer] = (),
) -> Simulation:
    """A simulation that is ready to run; it ends early once its record is hopeless.

    A policy's fault is raised, not isolated.
    """
    spec, network = scenario.simulation, policy.setup.network
    is_away = any(pool.network for pool in scenario.workers)
    first_lead_ns = FIRST_LEAD_NS if is_away else 0  # who is there at once is sent nothing in advance
    engine = Engine(policy, name=name, strict=True, learn=spec.learn, observers=observers, first_lead_ns=first_lead_ns)
    workers = policy.setup.workers
    combine: dict[str, Combine] = {model: service.combine for model, service in spec.service.items()}
    tables = {(p.partition, p.kind): p.expected for p in _profiles(scenario, workers, truth=True)}
    links = None if network is None else Links(network, {worker.id: worker.node for worker in workers})
    cluster = Cluster(
        [worker for worker, _ in _placed(scenario, seed)],
        Truth(tables, requests.times_ms, combine),
        record,
        interference=spec.interference,
        retry=spec.failures is None or spec.failures.retry,
        links=links,
    )
    listeners: list[Listener] = [record] if links is None else [record, Forwarding(engine, links)]
    simulation = Simulation(engine, cluster, listeners=listeners, patience=PATIENCE, enough=lambda: record.hopeless)
    simulation.schedule(_events(scenario, workers))
    simulation.feed(RequestArrived(request.arrival_ns, request) for request in requests)
    return simulation


def _placed(scenario: Scenario, seed: int) -> Iterator[tuple[SimulatedWorker, list[str] | None]]:
    """Every worker with what it hosts (None: every model), numbered through."""
    simulation = scenario.simulation
    worker_id = 0
    for entry, pool in enumerate(scenario.workers):
        for number in range(pool.count):
            yield (
                SimulatedWorker(
                    id=worker_id,
                    kind=pool.gpu,
                    node=pool.node_of(number),
                    gpu=f"{entry}/{number // pool.per_gpu}" if pool.per_gpu > 1 else "",
                    jitter=drawing_jitter(simulation.jitter, seed, worker_id),
                    delay_ns=drawing_delays(pool.network, seed, worker_id),
                    fails=drawing_failures(simulation.failures, seed, worker_id),
                ),
                pool.hosts,
            )
            worker_id += 1


def _profiles(scenario: Scenario, workers: Sequence[Worker], *, truth: bool) -> tuple[Profile, ...]:
    """What is expected, or true, of every (partition, kind) that some worker hosts."""
    profiles = []
    partitions = scenario.partitions
    for name, kind in sorted({(name, worker.kind) for worker in workers for name in worker.hosts}):
        part, max_rows = partitions[name]
        spec = part.profile_on(kind)
        if truth and name in scenario.simulation.service:
            spec = scenario.simulation.service[name].profile_on(kind) or spec
        assert spec is not None, "checked when the scenario was read"
        profiles.append(spec.build(name, kind, max_rows))
    return tuple(profiles)


def _events(scenario: Scenario, workers: Sequence[Worker]) -> list[AnyEvent]:
    """Workers that go and come back."""
    events: list[AnyEvent] = []
    for event in scenario.simulation.events:
        now_ns = round((scenario.warmup_s + event.at_s) * NS_PER_S)
        who = event.lost if event.lost is not None else event.joined
        for worker in workers:
            if who in (worker.id, worker.node):
                lost = event.lost is not None
                events.append(WorkerLost(now_ns, worker.id) if lost else WorkerJoined(now_ns, worker))
    return sorted(events, key=lambda event: event.now_ns)
