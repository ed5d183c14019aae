"""Running stages on Tritons, and clients that wait for a response."""

import asyncio
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tidegate.engine import StartStage
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import Outcome, RequestFailed, own_fault
from tidegate_proxy.configuration.settings import QueueLimits
from tidegate_proxy.messages.request import PendingRequest
from tidegate_proxy.observability.observability import Observability
from tidegate_proxy.observability.tracing import BatchSpan
from tidegate_proxy.scheduling.clock import LiveEngine
from tidegate_proxy.scheduling.payload import BatchPayload, StageTarget
from tidegate_proxy.tritons.backend import Backend


@dataclass(slots=True, eq=False)
class StageRun:
    """Stage that runs on its Triton."""

    effect: StartStage
    worker_id: int
    target: StageTarget
    payload: BatchPayload
    clients: list[PendingRequest]
    """Clients of the whole batch: its rows keep their places when one leaves."""
    started_ns: int
    waiting: int
    """Number of clients that have not left."""
    execution: BatchSpan | None = None
    """Span for tracing."""
    cancel: Callable[[], None] | None = None
    """Ends the call; None: it was not sent."""
    recovery: asyncio.Task[None] | None = None
    """Task that handles its failure."""
    is_slot: bool = False
    """Whether it is a request that occupies a slot until its last response."""
    batch_id: int = field(init=False)
    backend: Backend = field(init=False)
    """Triton that runs it."""
    is_last: bool = field(init=False)
    """Whether its batch is answered after it."""

    def __post_init__(self) -> None:
        batch = self.effect.batch
        self.batch_id, self.backend = batch.id, self.target.backend
        self.is_last = self.effect.stage + 1 == len(batch.stages)

    def is_ended_by(self, cancel: Callable[[], None]) -> None:
        """Record what ends the call of the stage, which was sent."""
        self.cancel = cancel

    @property
    def upper_ns(self) -> int:
        """Predicted duration."""
        return self.effect.batch.stages[self.effect.stage].duration_ns

    @property
    def abandoned(self) -> bool:
        """Whether no client waits for it any more."""
        return self.waiting == 0

    def stop(self) -> None:
        """Cancel the stage; its result is ignored."""
        if self.cancel:
            self.cancel()
        if self.recovery:
            self.recovery.cancel()
        self.payload.close(finished=False)


class RunningStages:
    """Running stages, and ended ones with a successor, by batch: at most one of each."""

    def __init__(self, engine: LiveEngine) -> None:
        self._engine = engine
        self._running: dict[int, StageRun] = {}
        self._between: dict[int, StageRun] = {}
        """The stage that ended last of those that have more of them."""
        self._freed_ns: dict[int, int] = {}
        """When the latest stage of a worker ended, by its id: what was sent behind that has run since."""

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[StageRun]:
        """The stages that run, in the order in which they were sent."""
        return iter(list(self._running.values()))

    def __contains__(self, run: StageRun) -> bool:
        """Whether it runs: it does not where its worker was given up, and its requests with it."""
        return self._running.get(run.batch_id) is run

    def is_running(self, batch_id: int) -> bool:
        """Return whether a stage of a batch runs."""
        return batch_id in self._running

    def begin(self, run: StageRun) -> None:
        """Register a stage that is sent to its Triton."""
        self._running[run.batch_id] = run
        if turns := run.backend.turns:
            effect = run.effect
            key = effect.batch.model, effect.rows, effect.shape
            try:
                turns.slowdown.sent(run.started_ns, run.worker_id, run.batch_id, key)
            except Exception as error:
                _end_turns(run, error)

    def end(self, run: StageRun, *, well: bool = False) -> int:
        """Remove a stage that has ended; return the current instant. `well`: it was answered."""
        del self._running[run.batch_id]
        ended_ns = self.free(run.worker_id)
        _over(run, ended_ns, teaches=well)
        return ended_ns

    def free(self, worker_id: int) -> int:
        """Mark a worker as idle after a stage; return the current instant."""
        now_ns = self._freed_ns[worker_id] = time.monotonic_ns()
        return now_ns

    def keep(self, run: StageRun) -> None:
        """Keep an ended stage whose batch continues."""
        self._between[run.batch_id] = run

    def take_last(self, batch_id: int) -> StageRun | None:
        """Remove and return the previous stage of a batch; None for its first stage."""
        return self._between.pop(batch_id, None)

    def run_of(self, client: PendingRequest) -> StageRun | None:
        """Return the stage that runs for a client, or None."""
        return None if client.batch_id is None else self._running.get(client.batch_id)

    def has_begun(self, client: PendingRequest) -> bool:
        """Return whether a client's batch has a stage that runs or has ended."""
        return client.batch_id in self._running or client.batch_id in self._between

    def is_behind(self, run: StageRun) -> bool:
        """Return whether another stage runs on the worker of this one."""
        return any(other.worker_id == run.worker_id and other is not run for other in self._running.values())

    def since_ns(self, run: StageRun) -> int:
        """Return the instant since when a stage runs: it was sent, or the one before it on its worker ended."""
        return max(run.started_ns, self._freed_ns.get(run.worker_id, 0))

    def forget(self, workers: Container[int]) -> list[StageRun]:
        """Remove and return the stages on lost workers."""
        runs = [run for run in self._running.values() if run.worker_id in workers]
        now_ns = time.monotonic_ns()
        for run in runs:
            del self._running[run.batch_id]
            _over(run, now_ns, teaches=False)
        return runs

    def forget_batch(self, batch_id: int) -> list[StageRun]:
        """Remove and return the stages of a batch."""
        runs = []
        if run := self._running.pop(batch_id, None):
            _over(run, time.monotonic_ns(), teaches=False)
            runs.append(run)
        if run := self._between.pop(batch_id, None):
            runs.append(run)
        return runs

    def forget_stranded(self) -> list[StageRun]:
        """Remove and return the stages of batches that the engine does not know."""
        now_ns, flight = time.monotonic_ns(), self._engine.engine.flight
        running = [run for batch_id, run in self._running.items() if flight(batch_id) is None]
        between = [run for batch_id, run in self._between.items() if flight(batch_id) is None]
        for run in running:
            del self._running[run.batch_id]
            _over(run, now_ns, teaches=False)
        for run in between:
            del self._between[run.batch_id]
        return [*running, *between]

    def forget_all(self) -> None:
        """Remove every stage."""
        now_ns = time.monotonic_ns()
        for run in self._running.values():
            _over(run, now_ns, teaches=False)
        self._running, self._between = {}, {}


def _over(run: StageRun, now_ns: int, *, teaches: bool) -> None:
    if turns := run.backend.turns:
        try:
            turns.slowdown.over(now_ns, run.worker_id, run.batch_id, teaches=teaches)
        except Exception as error:
            _end_turns(run, error)


def _end_turns(run: StageRun, error: Exception) -> None:
    """Stop serialization at a Triton where it fails: learning interference must not cost a request."""
    faults.report("learning how models slow each other down", error)
    run.backend.end_turns()


RESERVED_FRACTION = 0.1
"""Fraction of the limit that is reserved for clients and models with few queued requests."""


@dataclass(slots=True)
class QueueLoad:
    """Number of waiting requests and bytes."""

    requests: int = 0
    bytes: int = 0


def queue_refusal(limits: QueueLimits, waiting: QueueLoad, of_client: QueueLoad, of_model: QueueLoad) -> str:
    """Return why another request is rejected at these loads in all, of its client and of its model, or ""."""
    if waiting.requests < limits.requests and waiting.bytes < limits.bytes:
        return ""
    full = _reached(limits, waiting, 1)
    if not full or _reached(limits, waiting, 1 + RESERVED_FRACTION):
        return full
    shares = (
        (of_client, limits.reserved_queue_fraction_per_client),
        (of_model, limits.reserved_queue_fraction_per_model),
    )
    return "" if any(not _reached(limits, load, share) for load, share in shares) else full


def _reached(limits: QueueLimits, load: QueueLoad, share: float) -> str:
    """Return the limit that is reached, of the whole queue or of a share; None if none is."""
    if load.requests >= int(limits.requests * share):
        return "requests"
    return "bytes" if load.bytes >= int(limits.bytes * share) else ""


class PendingRequests:
    """Waiting clients by request id."""

    def __init__(self, observability: Observability) -> None:
        self._observability = observability
        self._by_request: dict[int, PendingRequest] = {}
        self.numbered = 0
        """Number of ids assigned."""
        self._load = QueueLoad()
        self._load_of_owner: dict[str, QueueLoad] = {}
        self._load_of_model: dict[str, QueueLoad] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(list(self._by_request.values()))

    def __contains__(self, client: PendingRequest) -> bool:
        return client.request_id in self._by_request

    def number(self, client: PendingRequest) -> int:
        """Assign an id to a request."""
        client.request_id = number = self.numbered
        self.numbered += 1
        return number

    def of(self, request_ids: Iterable[int]) -> list[PendingRequest]:
        """Return the clients of a batch that still wait."""
        return [client for request_id in request_ids if (client := self._by_request.get(request_id))]

    @property
    def waiting_by_model(self) -> dict[str, int]:
        """Number of waiting clients by model."""
        return {model: load.requests for model, load in self._load_of_model.items()}

    @property
    def held_bytes(self) -> int:
        """Total bytes of their requests."""
        return self._load.bytes

    def admit(self, client: PendingRequest, limits: QueueLimits) -> bool:
        """Add a client, and return True, unless a limit is reached."""
        model = client.envelope.model
        of_owner = self._load_of_owner.get(client.owner) or QueueLoad()
        of_model = self._load_of_model.get(model) or QueueLoad()
        if refusal := queue_refusal(limits, self._load, of_owner, of_model):
            self._observability.metrics.refused[model, refusal] += 1
            return False
        self._by_request[client.request_id] = client
        self._load_of_owner[client.owner], self._load_of_model[model] = of_owner, of_model
        for load in (self._load, of_owner, of_model):
            load.requests += 1
            load.bytes += len(client.envelope.message)
        return True

    def remove(self, request_id: int) -> PendingRequest | None:
        """Remove and return the client of a request; None if it does not wait."""
        client = self._by_request.pop(request_id, None)
        if client:
            of_owner = self._load_of_owner[client.owner]
            for load in (self._load, of_owner, self._load_of_model[client.envelope.model]):
                load.requests -= 1
                load.bytes -= len(client.envelope.message)
            if not of_owner.requests:  # connections come and go
                del self._load_of_owner[client.owner]
        return client

    def fail(self, request_id: int, failure: RequestFailed) -> None:
        """Fail a request whose client still waits."""
        if client := self.remove(request_id):
            self.tell(client, failure)

    def settle(self, run: StageRun, outcomes: Sequence[Outcome], output_ns: int = 0) -> None:
        """Answer all clients of a batch; `output_ns`: time that splitting the response took, in ns."""
        waiting = [self.remove(client.request_id) for client in run.clients]
        answered: list[PendingRequest] = []
        for client, outcome in zip(waiting, outcomes, strict=True):
            if client is None:
                continue
            if isinstance(outcome, RequestFailed):
                self.tell(client, outcome)
            else:
                self._give(client, outcome)
                answered.append(client)
        if answered:
            self._observability.answered(answered, run.execution, output_ns)

    def conclude(self, client: PendingRequest, run: StageRun) -> None:
        """Count a client as answered whose responses did not pass through here."""
        if self.remove(client.request_id):
            self._observability.answered([client], run.execution, 0)

    def tell(self, client: PendingRequest, failure: RequestFailed) -> None:
        """Fail a request: notify the client first, then the observers."""
        self._give(client, failure)
        self._observability.failed(client, failure.reason, failure.outcome)

    def _give(self, client: PendingRequest, outcome: Outcome) -> None:
        try:
            client.resolve(outcome)
        except Exception as error:
            faults.report("telling a client", error)
            try:
                client.resolve(own_fault())
            except Exception as another:
                faults.report("telling a client", another)
