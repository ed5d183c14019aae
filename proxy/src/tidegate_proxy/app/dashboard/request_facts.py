"""Facts about one request, derived from buffered events: waiting, workers, batch companions, outcome."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.api import Batch, Dispatch, Model, Request, RequestArrived, Setup, TimerFired, Worker
from tidegate.observation import (
    ClockAdvanced,
    EngineSettings,
    OutcomeListener,
    Reducer,
    RequestTimeline,
    StartStage,
    TimelineRecorder,
)
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent

REPLAY_SETTINGS: Final = EngineSettings(learn=True, max_tries=1)
"""Engine settings for the replay; timelines do not depend on them."""


@dataclass(frozen=True)
class RanStage:
    """Stage of the request that has ended."""

    partition: str
    worker_id: int
    rows: int
    planned_start_ns: int
    started_ns: int
    upper_ns: int
    took_ns: int

    @property
    def overran_ns(self) -> int:
        """Nanoseconds beyond the predicted latency; negative: less."""
        return self.took_ns - self.upper_ns


@dataclass
class RequestFacts(OutcomeListener):
    """Facts about a request, fed with stimuli from before its arrival up to its end; None: not known yet."""

    request_id: int
    models: Sequence[Model]
    workers: Sequence[Worker]
    request: Request | None = None
    dispatched_ns: int | None = None
    """Instant at which its last batch was formed."""
    planned_end_ns: int | None = None
    """Instant at which that batch was predicted to end."""
    sent_ns: int | None = None
    """Instant at which its first stage was sent."""
    batch: Batch | None = None
    rows: int = 0
    """Rows of the batch."""
    companions: Sequence[Request] = ()
    """Requests of the batch, this one included."""
    stages: list[RanStage] = field(default_factory=list)
    before: RanStage | None = None
    """Previous stage on the worker of its first stage."""
    before_batch: int | None = None
    """Batch of that stage."""
    meanwhile: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Batches and their time in ns that its workers ran while it waited, by model."""
    woke_late_ns: int = 0
    """Largest delay of a timer of the policy while it was queued."""
    outcome: str = ""
    ended_ns: int | None = None
    reason: str = ""
    now_ns: int = 0
    """Instant of the last stimulus."""

    def __post_init__(self) -> None:
        """Nothing has happened yet."""
        self._reducer = Reducer(self)
        self._timelines = TimelineRecorder(only=[self.request_id])
        setup = Setup(models=tuple(self.models), workers=tuple(self.workers), profiles=())
        self._timelines.started("", {}, setup, REPLAY_SETTINGS)
        self._last: dict[int, tuple[int, RanStage]] = {}
        """The stage that ended last, with its batch, by worker."""
        self._hosts = frozenset[int]()

    @property
    def timeline(self) -> RequestTimeline | None:
        """Steps of the request as text."""
        return self._timelines.of(self.request_id)

    @property
    def end_ns(self) -> int:
        """Instant of its end, or of the last stimulus."""
        return self.now_ns if self.ended_ns is None else self.ended_ns

    def feed(self, moments: Iterable[BufferedEvent]) -> None:
        """Add the next stimuli."""
        for moment in moments:
            event = moment.event
            self.now_ns = event.now_ns
            for heard, answer in moment.policy_events:
                self._timelines.on_policy_event(heard, answer)
                if type(heard) is TimerFired and self.request is not None and not self.outcome:
                    self.woke_late_ns = max(self.woke_late_ns, event.now_ns - heard.now_ns)
            self._timelines.handled(event, moment.commands, moment.effects)
            if type(event) is RequestArrived and event.request.id == self.request_id:
                self._arrive(event.request)
            # What ran before ended before the policy decided, and what it decided runs afterwards.
            self._reducer.handled(event, ())
            for command in moment.commands:
                if type(command) is Dispatch and self.request_id in command.batch.request_ids:
                    self.dispatched_ns, self.planned_end_ns = event.now_ns, command.batch.stages[-1].end_ns
                    self.batch = self.sent_ns = None  # one that failed, where there was one
                    self.stages.clear()
            self._reducer.handled(ClockAdvanced(event.now_ns), moment.effects)

    def _arrive(self, request: Request) -> None:
        self.request = request
        model = next((model for model in self.models if model.name == request.model), None)
        first = {path.partitions[0] for path in model.paths} if model else set[str]()
        self._hosts = frozenset(worker.id for worker in self.workers if first.intersection(worker.hosts))

    # From the reducer ---------------------------------------------------------------------------------------------

    def joined(self, now_ns: int, effect: StartStage, requests: Sequence[Request]) -> None:
        """Record the start of a batch."""
        if self.request_id in effect.batch.request_ids:
            self.sent_ns, self.batch, self.rows, self.companions = now_ns, effect.batch, effect.rows, requests
            before = self._last.get(effect.batch.stages[0].worker_id)
            if before:
                self.before_batch, self.before = before

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Record the end of a stage."""
        stage = effect.batch.stages[effect.stage]
        ran = RanStage(
            stage.partition,
            stage.worker_id,
            effect.rows,
            stage.start_ns,
            started_ns,
            stage.duration_ns,
            ended_ns - started_ns,
        )
        self._last[stage.worker_id] = (effect.batch.id, ran)
        if self.batch is not None and effect.batch.id == self.batch.id:
            self.stages.append(ran)
        elif self.request is not None and not self.stages and not self.outcome and stage.worker_id in self._hosts:
            batches, ns = self.meanwhile.get(effect.batch.model, (0, 0))
            self.meanwhile[effect.batch.model] = batches + 1, ns + ended_ns - started_ns
            if self.batch is not None and stage.worker_id == self.batch.stages[0].worker_id:
                self.before_batch, self.before = effect.batch.id, ran  # ours was sent behind it

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Record the response to a batch."""
        for request in requests:
            if request.id == self.request_id:
                self._end("late" if ended_ns > request.deadline_ns else "on time", ended_ns)

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a dropped request."""
        if request.id == self.request_id:
            self._end("dropped", now_ns, reason)

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a failed request."""
        if request.id == self.request_id:
            self._end("failed", now_ns, reason)

    def cancelled(self, now_ns: int, request: Request) -> None:
        """Record a cancelled request."""
        if request.id == self.request_id:
            self._end("cancelled", now_ns)

    def _end(self, outcome: str, ended_ns: int, reason: str = "") -> None:
        self.outcome, self.ended_ns, self.reason = outcome, ended_ns, reason


def names_of(workers: Iterable[Worker]) -> Mapping[int, str]:
    """Return the names of workers by id."""
    return {worker.id: worker.name for worker in workers}
