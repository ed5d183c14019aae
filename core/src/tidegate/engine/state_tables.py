"""The engine's books: what is in flight, and what is booked on which worker."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.api import Batch, BatchFailed, Model, Request, Stage, Worker


@dataclass(slots=True)
class InFlightBatch:
    """A dispatched batch that has not ended, with its position."""

    batch: Batch
    requests: list[Request]
    rows: int
    shape: str = ""
    """The shape of all its requests."""
    stage: int = 0
    """The stage that runs, or waits for its worker."""
    running: bool = False
    sent_ns: int = 0
    """When the stage that runs was sent to its worker."""
    early_ns: int | None = None
    """How much earlier that was than the end of the stage that its worker ran; None while that runs on."""
    doomed: BatchFailed | None = None
    """Why it will not be answered, unless it is rerouted: a worker that it needs was lost. None of its stages starts.

    Told once the stage that runs is over.
    """
    preempted: bool = False
    """The policy took its worker away; its driver will tell when the worker is free."""

    @property
    def ran_alone(self) -> bool:
        """Whether it is of one request, which still waits for it, and of one stage."""
        return self.is_whole and len(self.requests) == 1

    @property
    def is_whole(self) -> bool:
        """Whether all of its requests still wait for it, and it is of one stage."""
        return len(self.batch.request_ids) == len(self.requests) and len(self.batch.stages) == 1

    def runs(self, stage: Stage) -> bool:
        """Whether this stage of its batch runs."""
        return self.running and self.batch.stages[self.stage] is stage


@dataclass(slots=True)
class Reservations:
    """Reservations of a worker, in the order of planned starts."""

    worker: Worker
    hosts: frozenset[str]
    """The partitions that it hosts, to look up."""
    idle: set[int]
    """The workers, of all, that have nothing to do."""
    stages: list[Stage] = field(default_factory=list)
    flights: list[InFlightBatch] = field(default_factory=list)
    """The flight of each stage."""
    free_ns: int | None = None
    """The instant from which on a stage counts that is sent while the first one still runs; None: none may be."""
    is_lost: bool = False
    """The present event is its loss, of which the policy is told after what came before: nothing starts here."""

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
        """Whether a stage may be sent though another one runs: it is the next one, and that is about to end."""
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

    def idle(self, partition: str, kind: str) -> list[Worker]:
        """Return the workers of a class that host a partition and have no reservations: O(workers)."""
        return [
            worker
            for worker in self.workers.values()
            if worker.device_class == kind and partition in worker.hosts and not self.bookings[worker.id].stages
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
        """Retire a worker that the new topology does without: it is forgotten after its last reservation."""
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
        """Return the most rows of a model that one batch can have: of its pipelines with workers; otherwise 0."""
        most_rows = self._takes_rows.get(name)
        if most_rows is None:
            model = self.models.get(name)
            if model is None:
                return 0  # clients choose names: they are not to be remembered
            served = (path.max_rows for path in model.paths if all(part in self._hosted for part in path.partitions))
            most_rows = self._takes_rows[name] = max(served, default=0)
        return most_rows

    def serves(self, request: Request) -> bool:
        """Whether a request can run on some of the workers that are there."""
        most_rows = self._takes_rows.get(request.model)
        return request.rows <= (self.takes_rows(request.model) if most_rows is None else most_rows)
