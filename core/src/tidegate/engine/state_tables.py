"""Tables of the engine's state: batches in flight, and the reservations of each worker."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.api import Batch, BatchFailed, Model, Request, Stage, Worker


@dataclass(slots=True)
class InFlightBatch:
    """A dispatched batch that has not ended, with its current stage."""

    batch: Batch
    requests: list[Request]
    rows: int
    shape: str = ""
    """Shape of all requests of the batch."""
    stage: int = 0
    """Index of the stage that runs or waits for its worker."""
    running: bool = False
    sent_ns: int = 0
    """Time in ns at which the running stage was sent to its worker."""
    early_ns: int | None = None
    """Time in ns between the sending of this stage and the end of the stage before it on the worker; None until that
    ends.
    """
    doomed: BatchFailed | None = None
    """Failure of the batch unless it is rerouted, because a worker that it needs was lost; none of its stages starts.

    The event is passed on when the running stage is over.
    """
    occupant: Request | None = None
    """Request of a model with `streams`, even after its client left; its worker is busy until the last response."""
    first_response_ns: int | None = None
    """Time of the first response of such a request, in ns; None: there was none yet."""
    preempted: bool = False
    """Whether the policy preempted the batch; the driver reports when the worker is free."""

    @property
    def ran_alone(self) -> bool:
        """Whether the batch has one stage and one request, which its client has not cancelled."""
        return self.is_whole and len(self.requests) == 1

    @property
    def is_whole(self) -> bool:
        """Whether the batch has one stage and none of its requests was cancelled."""
        return len(self.batch.request_ids) == len(self.requests) and len(self.batch.stages) == 1

    def runs(self, stage: Stage) -> bool:
        """Whether `stage` is the stage of the batch that runs."""
        return self.running and self.batch.stages[self.stage] is stage


@dataclass(slots=True)
class Reservations:
    """Reservations of a worker, in the order of planned starts."""

    worker: Worker
    hosts: frozenset[str]
    """Partitions that the worker hosts."""
    idle: set[int]
    """Ids of all workers without reservations, shared by all entries."""
    stages: list[Stage] = field(default_factory=list)
    flights: list[InFlightBatch] = field(default_factory=list)
    """Batch of each reserved stage, in the same order."""
    free_ns: int | None = None
    """Time in ns from which a stage counts that is sent while the first one still runs; None: none may be sent."""
    is_lost: bool = False
    """Whether the current event is the loss of the worker: no stage starts on it until the policy was notified."""

    def book(self, stage: Stage, flight: InFlightBatch) -> None:
        """Add a stage by its planned start, behind the running one."""
        self.idle.discard(self.worker.id)
        position = len(self.stages)
        first = int(position > 0 and self.flights[0].runs(self.stages[0]))
        while position > first and self.stages[position - 1].start_ns > stage.start_ns:
            position -= 1
        self.stages.insert(position, stage)
        self.flights.insert(position, flight)

    def may_follow(self, now_ns: int, stage: Stage) -> bool:
        """Whether a stage may be sent while another runs: it is the next one, and the running one is about to end."""
        is_next = self.free_ns is not None and len(self.stages) > 1 and self.stages[1] is stage
        return is_next and stage.start_ns <= max(now_ns, self.free_ns or 0)

    def strike(self, stage: Stage) -> bool:
        """Remove a stage; return False if it was not reserved, since the worker was lost and came back."""
        for position, booked in enumerate(self.stages):
            if booked is stage:  # another flight's may be equal: planned for the same start, and as long
                del self.stages[position], self.flights[position]
                self._note_idle()
                return True
        return False

    def clear(self, flight: InFlightBatch) -> None:
        """Remove every stage of a batch."""
        kept = [(stage, other) for stage, other in zip(self.stages, self.flights, strict=True) if other is not flight]
        self.stages = [stage for stage, _ in kept]
        self.flights = [other for _, other in kept]
        self._note_idle()

    def _note_idle(self) -> None:
        if not self.stages:
            self.idle.add(self.worker.id)


class WorkerTable:
    """Table of the workers and their reservations."""

    def __init__(self, workers: Iterable[Worker], models: Mapping[str, Model]) -> None:
        self.models = models
        """The models that are served where workers host them; what follows from them is looked up by `takes_rows`."""
        self.serves_late = any(model.on_deadline_miss == "serve" for model in models.values())
        """Whether requests of any model are served though they are late."""
        self.workers: dict[int, Worker] = {}
        """The workers that may be given work, by id."""
        self.bookings: dict[int, Reservations] = {}
        """The bookings of every worker, by its id; also of workers that only finish what they have."""
        self.idle_ids: set[int] = set()
        """The ids of the workers without bookings; perhaps also of some that are there no more."""
        self._hosted: Counter[str] = Counter()
        self._host_sets: dict[tuple[str, ...], frozenset[str]] = {}
        self._takes_rows: dict[str, int] = {}
        """Results of `takes_rows` since the workers last changed."""
        for worker in workers:
            self.add(worker)

    def add(self, worker: Worker) -> None:
        """Add a worker that can be given work; its reservations stay."""
        # Workers that host the same share the set of it: there may be a thousand of each.
        hosts = self._host_sets.setdefault(worker.hosts, frozenset(worker.hosts))
        self._takes_rows.clear()
        self.workers[worker.id] = worker
        if worker.id not in self.bookings or not self.bookings[worker.id].stages:
            self.bookings[worker.id] = Reservations(worker, hosts, self.idle_ids)
            self.idle_ids.add(worker.id)
        self._hosted.update(worker.hosts)

    def idle(self, partition: str, device_class: str) -> list[Worker]:
        """Return the workers of a device class that host a partition and have no reservations: O(workers)."""
        return [
            worker
            for worker in self.workers.values()
            if worker.device_class == device_class and partition in worker.hosts and not self.bookings[worker.id].stages
        ]

    def withdraw(self, worker_id: int) -> bool:
        """Stop giving a worker work; its reservations stay. Return False if it was unknown."""
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return False
        self._hosted -= Counter(worker.hosts)
        self._takes_rows.clear()
        return True

    def dismiss(self, worker_id: int) -> None:
        """Remove a worker that the new topology does not have, after its last reservation."""
        self.withdraw(worker_id)
        if not self.bookings[worker_id].stages:
            del self.bookings[worker_id]
            self.idle_ids.discard(worker_id)

    def lose(self, worker_id: int) -> None:
        """Mark a worker as lost: nothing starts on it while its reservations are removed."""
        if booked := self.bookings.get(worker_id):
            booked.is_lost = True

    def serve(self, models: Mapping[str, Model]) -> None:
        """Set the served models."""
        self.models = models
        self.serves_late = any(model.on_deadline_miss == "serve" for model in models.values())
        self._takes_rows.clear()

    def takes_rows(self, name: str) -> int:
        """Return the maximum rows of a batch of a model on the pipelines that have workers; 0 if there is none."""
        most_rows = self._takes_rows.get(name)
        if most_rows is None:
            model = self.models.get(name)
            if model is None:
                return 0  # clients choose names: they are not to be remembered
            served = (path.max_rows for path in model.paths if all(part in self._hosted for part in path.partitions))
            most_rows = self._takes_rows[name] = max(served, default=0)
        return most_rows

    def serves(self, request: Request) -> bool:
        """Whether some worker can run a request: a pipeline of its model has workers and takes its rows."""
        most_rows = self._takes_rows.get(request.model)
        return request.rows <= (self.takes_rows(request.model) if most_rows is None else most_rows)
