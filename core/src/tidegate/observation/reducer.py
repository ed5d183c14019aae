"""Reducer: derives the outcome of each request and each stage from the stream of observations.

All counts of requests come from here: the engine's counts, the simulator's results, the proxy's metrics and statistics,
the evaluation of a load test. So the numbers of one run are equal everywhere.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.api import (
    Advise,
    Batch,
    BatchFailed,
    Drop,
    Request,
    RequestArrived,
    RequestCancelled,
    StageFinished,
    WorkerJoined,
    WorkerLost,
)
from tidegate.observation.effects import AnyEffect, EngineRestarted, Fail, StartStage
from tidegate.observation.stimuli import (
    AnyStimulus,
    ChangeProgressed,
    ClockAdvanced,
    FirstResponse,
    PolicyTuned,
    TopologyChanged,
)


@dataclass
class OutcomeCounts:
    """Number of requests by outcome; they add up to `accepted` once nothing is queued or in flight (invariant 1)."""

    accepted: int = 0
    answered: int = 0
    late: int = 0
    """Number of answered requests that missed their deadline."""
    failed: int = 0
    cancelled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of dropped requests, by reason."""

    def __str__(self) -> str:
        """The counts for people: `accepted 9, answered 5 (late 1), failed 0, cancelled 1, dropped 3 (deadline 3)`."""
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.dropped.items())
        return (
            f"accepted {self.accepted}, answered {self.answered} (late {self.late}), failed {self.failed}, "
            f"cancelled {self.cancelled}, dropped {self.dropped.total()}{f' ({reasons})' if reasons else ''}"
        )

    @property
    def ended(self) -> int:
        """Number of ended requests of all outcomes."""
        return self.answered + self.failed + self.cancelled + self.dropped.total()


class OutcomeListener:
    """Base class of listeners to a reducer: override the notifications of interest. They come in order of time."""

    def joined(self, now_ns: int, effect: StartStage, requests: Sequence[Request]) -> None:
        """Handle the first stage of a batch at `now_ns`; `requests`: those not cancelled."""

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Handle the end of a stage that ran, whatever its outcome.

        `started_ns`: time at which the stage was sent, or at which the previous stage on its worker ended, if that was
        later. `ended_ns`: time of its end.
        """

    def first_response(self, effect: StartStage, requests: Sequence[Request], started_ns: int, now_ns: int) -> None:
        """Handle the first response of a stage that was sent at `started_ns` and goes on.

        `requests`: those not cancelled.
        """

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Handle the end of a batch's last stage; `requests`: those not cancelled.

        `ended_ns`: time of its end, or of its first response, which has the deadline.
        """

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Handle a request that the policy dropped, with its reason, a short identifier."""

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Handle a request that failed for good, with its reason as text."""

    def cancelled(self, now_ns: int, request: Request) -> None:
        """Handle a request whose client left."""

    def advised(self, now_ns: int, advice: Advise) -> None:
        """Handle the policy's recommendation on the number of workers."""

    def change_progressed(self, event: ChangeProgressed) -> None:
        """Handle a layout change that reached a state."""

    def policy_tuned(self, event: PolicyTuned) -> None:
        """Handle a verdict of the policy's tuner."""


class SentStage:
    """Stage that runs or was sent to its worker."""

    __slots__ = ("effect", "first_response_ns", "sent_ns", "worker_id")

    def __init__(self, effect: StartStage, sent_ns: int) -> None:
        self.effect = effect
        self.sent_ns = sent_ns
        self.first_response_ns: int | None = None
        """Time of its first response, if more may follow; None: there was none yet."""
        self.worker_id = effect.batch.stages[effect.stage].worker_id


class Reducer:
    """State of waiting requests and running stages, from an engine's stream; listeners are notified of outcomes."""

    def __init__(self, *readers: OutcomeListener) -> None:
        self._tally = OutcomeCounts()
        self.open: dict[int, Request] = {}
        """Requests that have not ended, by id, in the order of their arrival."""
        self.sent: dict[int, SentStage] = {}
        """The stages that run or are on their way, by batch id."""
        self._readers = readers
        self._on_worker: dict[int, list[int]] = {}
        """The batches whose stages were sent to a worker, by its id: the first one runs."""
        self._freed_ns: dict[int, int] = {}
        """When a stage last ended on a worker, by its id."""

    @property
    def tally(self) -> OutcomeCounts:
        """Counts of ended requests by outcome; always the same object, updated on access."""
        self._tally.accepted = self._tally.ended + len(self.open)
        return self._tally

    def waiting(self) -> Counter[str]:
        """Return the number of waiting requests by model: for a batch, or between two stages."""
        underway = {request_id for stage in self.sent.values() for request_id in stage.effect.batch.request_ids}
        return Counter(request.model for request in self.open.values() if request.id not in underway)

    def add_listener(self, reader: OutcomeListener) -> None:
        """Add a listener, which is notified from now on."""
        self._readers = (*self._readers, reader)

    def remove_listener(self, reader: OutcomeListener) -> None:
        """Remove a listener."""
        self._readers = tuple(each for each in self._readers if each is not reader)

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Process a stimulus of the engine and its effects."""
        if type(event) is RequestArrived:  # a match costs more
            request = event.request
            self.open[request.id] = request
        elif type(event) is StageFinished:
            self._finish_stage(event)
        elif type(event) is not ClockAdvanced:
            self._take_in_rare(event)
        for effect in effects:
            if type(effect) is StartStage:
                self._send_stage(event.now_ns, effect)
            else:
                self._take_in_effect(event.now_ns, effect)

    # Requests ----------------------------------------------------------------------------------------------------

    def _answer(self, batch: Batch, ended_ns: int) -> None:
        take = self.open.pop
        requests = [request for request_id in batch.request_ids if (request := take(request_id, None))]
        self._tally.answered += len(requests)
        self._tally.late += sum([ended_ns > request.deadline_ns for request in requests])
        for reader in self._readers:
            reader.answered(batch, requests, ended_ns)

    def _cancel(self, event: RequestCancelled) -> None:
        if request := self.open.pop(event.request_id, None):
            self._tally.cancelled += 1
            for reader in self._readers:
                reader.cancelled(event.now_ns, request)

    def _drop(self, now_ns: int, drop: Drop) -> None:
        if request := self.open.pop(drop.request_id, None):
            self._tally.dropped[drop.reason] += 1
            for reader in self._readers:
                reader.dropped(now_ns, request, drop.reason)

    def _fail(self, now_ns: int, request_id: int, reason: str) -> None:
        if request := self.open.pop(request_id, None):
            self._tally.failed += 1
            for reader in self._readers:
                reader.failed(now_ns, request, reason)

    # Stages --------------------------------------------------------------------------------------------------------

    def _send_stage(self, now_ns: int, effect: StartStage) -> None:
        batch = effect.batch
        sent = self.sent[batch.id] = SentStage(effect, now_ns)
        self._on_worker.setdefault(sent.worker_id, []).append(batch.id)
        if not effect.stage and self._readers:
            known = self.open.get
            requests = [request for request_id in batch.request_ids if (request := known(request_id))]
            for reader in self._readers:
                reader.joined(now_ns, effect, requests)

    def _finish_stage(self, event: StageFinished) -> None:
        sent = self.sent.get(event.batch_id)
        if sent is None or sent.effect.stage != event.stage:
            return  # a straggler of a batch that was given up
        batch = sent.effect.batch
        self._end_stage(sent, event.started_ns, event.ended_ns)
        if event.stage + 1 == len(batch.stages):
            self._answer(batch, event.ended_ns if sent.first_response_ns is None else sent.first_response_ns)

    def _respond_first(self, event: FirstResponse) -> None:
        sent = self.sent.get(event.batch_id)
        if sent is None or sent.first_response_ns is not None:
            return
        sent.first_response_ns = event.now_ns
        requests = [each for request_id in sent.effect.batch.request_ids if (each := self.open.get(request_id))]
        for reader in self._readers:
            reader.first_response(sent.effect, requests, event.started_ns, event.now_ns)

    def _end_stage(self, sent: SentStage, started_ns: int, ended_ns: int) -> None:
        batch_id, worker_id = sent.effect.batch.id, sent.worker_id
        del self.sent[batch_id]
        self._on_worker[worker_id].remove(batch_id)
        started_ns = min(max(started_ns, self._freed_ns.get(worker_id, 0)), ended_ns)
        self._freed_ns[worker_id] = ended_ns
        for reader in self._readers:
            reader.stage_ran(sent.effect, started_ns, ended_ns)

    def _break_off(self, batch_id: int, now_ns: int) -> None:
        """The stage of a batch was sent, and will not finish."""
        if (sent := self.sent.get(batch_id)) is None:
            return
        on_worker = self._on_worker[sent.worker_id]
        if on_worker[0] == batch_id:
            self._end_stage(sent, sent.sent_ns, now_ns)
        else:
            on_worker.remove(batch_id)
            del self.sent[batch_id]

    def _lose_worker(self, worker_id: int, now_ns: int) -> None:
        for batch_id in reversed(self._on_worker.get(worker_id, ())):  # what waited first: it never ran
            self._break_off(batch_id, now_ns)
        self._on_worker.pop(worker_id, None)
        self._freed_ns.pop(worker_id, None)

    def _forget_all_but(self, wanted: set[int]) -> None:
        """A plan does without the other workers; what is on its way there is finished."""
        gone = [number for number, batches in self._on_worker.items() if number not in wanted and not batches]
        for worker_id in gone:
            del self._on_worker[worker_id]
            self._freed_ns.pop(worker_id, None)

    # Rare events -------------------------------------------------------------------------------------------------

    def _take_in_rare(self, event: AnyStimulus) -> None:
        match event:
            case FirstResponse():
                self._respond_first(event)
            case RequestCancelled():
                self._cancel(event)
            case BatchFailed():
                self._break_off(event.batch_id, event.now_ns)
            case WorkerJoined():  # its loss was not noticed
                self._lose_worker(event.worker.id, event.now_ns)
            case WorkerLost():
                self._lose_worker(event.worker_id, event.now_ns)
            case TopologyChanged():
                self._forget_all_but({worker.id for worker in event.workers})
            case ChangeProgressed():
                for reader in self._readers:
                    reader.change_progressed(event)
            case PolicyTuned():
                for reader in self._readers:
                    reader.policy_tuned(event)

    def _take_in_effect(self, now_ns: int, effect: AnyEffect) -> None:
        match effect:
            case Drop():
                self._drop(now_ns, effect)
            case Fail():
                self._fail(now_ns, effect.request_id, effect.reason)
            case Advise():
                for reader in self._readers:
                    reader.advised(now_ns, effect)
            case EngineRestarted():
                for request_id in effect.failed:
                    self._fail(now_ns, request_id, effect.reason)
