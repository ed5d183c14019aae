"""Adaptive concurrency limits in a simulation: slots of a server come and go as the limit of its streams changes.

The limit is that of a live Tidegate (`tidegate.control.concurrency_limit`). Responses after the first one are
no events of a simulation. The limit gets them, each at its instant, whenever a stream of the server begins,
responds first or ends: in between, all streams of the server go on at one pace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from tidegate.api import BatchFailed, Setup, StageFinished, Worker, ms_to_ns
from tidegate.control.concurrency_limit import ConcurrencyLimit
from tidegate.engine import AnyEffect, AnyStimulus, FirstResponse, StartStage, TopologyChanged
from tidegate.sim.cluster import Cluster
from tidegate.sim.event_queue import EventQueue
from tidegate.sim.record import RunRecord
from tidegate.sim.true_latency import SimulatedWorker
from tidegate.workload import RequestSequence, Scenario
from tidegate.workload.simulated import NetworkSpec
from tidegate.workload.workers import devices_of

MIN_LEFT_RESPONSES: Final = 1e-6
"""Part of the last response that is left until its stream ends."""


@dataclass(slots=True)
class _RunningStream:
    """Stream that occupies a slot."""

    request_id: int
    worker_id: int
    position: float = 0.0
    """Responses so far, with the part of the next one; 0: the first one is not there."""


@dataclass(slots=True)
class _Server:
    """Server with slots of one model."""

    limit: ConcurrencyLimit
    network: NetworkSpec | None
    """Delays between it and the scheduler; None: no delays."""
    slots: list[Worker] = field(default_factory=list)
    streams: dict[int, _RunningStream] = field(default_factory=dict)
    """Running streams by batch id."""
    since_ns: int = 0
    """Instant until which responses were counted."""


class SimulatedSlotLimits:
    """Listener that finds the limits of the workers with `slots: auto`, and changes the topology by them."""

    def __init__(
        self,
        scenario: Scenario,
        setup: Setup,
        requests: RequestSequence,
        cluster: Cluster,
        record: RunRecord,
        simulated: Callable[[Worker, NetworkSpec | None], SimulatedWorker],
    ) -> None:
        """Create the listener of a run.

        `simulated(worker, network)`: makes the simulated worker of a new slot, from the delays of its entry.
        """
        self._setup = setup
        self._requests = requests
        self._cluster = cluster
        self._record = record
        self._simulated = simulated
        self._agenda: EventQueue | None = None
        self._workers = list(setup.workers)
        self._next_id = 1 + max(worker.id for worker in setup.workers)
        self._servers: dict[str, _Server] = {}
        for worker, (pool, _) in zip(setup.workers, devices_of(scenario.workers), strict=True):
            if pool.slots == "auto":
                server = self._servers.get(worker.server)
                if server is None:
                    server = self._servers[worker.server] = _Server(_limit_of(scenario, worker), pool.network)
                server.slots.append(worker)
        self._server_of = {slot.id: server for server in self._servers.values() for slot in server.slots}

    def begin(self, agenda: EventQueue) -> None:
        """Schedule changes of the topology in this event queue."""
        self._agenda = agenda

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Count responses and streams; change the slots of a server whose limit has changed."""
        now_ns = event.now_ns
        if isinstance(event, FirstResponse | StageFinished | BatchFailed):
            server = self._server_of.get(event.worker_id)
            if server and (stream := server.streams.get(event.batch_id)):
                self._take_in(server, stream, event)
        for effect in effects:
            if isinstance(effect, StartStage):
                worker_id = effect.batch.stages[effect.stage].worker_id
                if server := self._server_of.get(worker_id):
                    has_changed = self._count_responses(server, now_ns)
                    server.streams[effect.batch.id] = _RunningStream(effect.batch.request_ids[0], worker_id)
                    server.limit.begin(now_ns)
                    if has_changed:
                        self._resize(server, now_ns)

    def _take_in(
        self, server: _Server, stream: _RunningStream, event: FirstResponse | StageFinished | BatchFailed
    ) -> None:
        now_ns = event.now_ns
        has_changed = self._count_responses(server, now_ns, stream if isinstance(event, StageFinished) else None)
        if isinstance(event, FirstResponse):
            stream.position = 1.0
            has_changed |= server.limit.respond(now_ns)
        else:
            del server.streams[event.batch_id]
            server.limit.end(now_ns)
        if has_changed:
            self._resize(server, now_ns)

    def _count_responses(self, server: _Server, now_ns: int, ended: _RunningStream | None = None) -> bool:
        """Count the responses of all streams until now; return whether the limit has changed.

        `ended`: stream that has its last response now; None: no stream.
        """
        responses, rest_ns = self._requests.responses, self._requests.rest_ns
        assert responses is not None, "slots are of streams"
        assert rest_ns is not None, "slots are of streams"
        since_ns, server.since_ns = server.since_ns, now_ns
        instants_ns: list[int] = []
        for batch_id, stream in server.streams.items():
            total, before = responses[stream.request_id], stream.position
            if stream is ended:
                stream.position = total
            elif before:
                left_ns = self._cluster.left_ns(stream.worker_id, batch_id, now_ns)
                if left_ns is None:
                    continue  # it was preempted, and has left the cluster
                done = 1 - left_ns / max(1, rest_ns[stream.request_id])
                stream.position = min(1 + done * (total - 1), total - MIN_LEFT_RESPONSES)
            pace_ns = (now_ns - since_ns) / max(stream.position - before, MIN_LEFT_RESPONSES)
            passed = range(int(before) + 1, int(stream.position) + 1)
            instants_ns += [min(now_ns, since_ns + round((number - before) * pace_ns)) for number in passed]
        changes = [server.limit.respond(at_ns) for at_ns in sorted(instants_ns)]
        return any(changes)

    def _resize(self, server: _Server, now_ns: int) -> None:
        """Have as many slots as the limit; surplus ones finish their streams."""
        assert self._agenda is not None, "it has begun"
        before, limit = len(server.slots), server.limit.limit
        added = [self._another(server.slots[0]) for _ in range(limit - before)]
        removed = {slot.id for slot in server.slots[limit:]}
        server.slots = [*server.slots[:limit], *added]
        self._server_of |= {slot.id: server for slot in added}
        self._workers = [*(worker for worker in self._workers if worker.id not in removed), *added]
        self._cluster.add(self._simulated(slot, server.network) for slot in added)
        self._record.joined_workers |= {slot.id: slot.name for slot in added}
        self._record.slot_changes.append((now_ns, len(server.slots) - before))
        setup = self._setup
        self._agenda.schedule(
            TopologyChanged(now_ns, setup.models, tuple(self._workers), setup.profiles, setup.network)
        )

    def _another(self, slot: Worker) -> Worker:
        worker_id, self._next_id = self._next_id, self._next_id + 1
        return replace(slot, id=worker_id, name=f"{slot.node}/{slot.device_class}-{worker_id}")


def _limit_of(scenario: Scenario, worker: Worker) -> ConcurrencyLimit:
    streaming = scenario.model(worker.hosts[0]).streaming
    slo_gap_ms = streaming.slo_gap_ms if streaming else None
    return ConcurrencyLimit(None if slo_gap_ms is None else ms_to_ns(slo_gap_ms))
