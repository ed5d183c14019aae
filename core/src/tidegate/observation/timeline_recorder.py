"""Timelines: what happened to a request, and why, derived from the stream and from the events that the policy gets.

The stream contains what happened. The policy's events explain why and when: that it sees a request, that a worker is
free, that a timer fired.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.api import (
    NEVER_NS,
    NS_PER_MS,
    AnyCommand,
    AnyEvent,
    Batch,
    BatchFailed,
    CancelTimer,
    Dispatch,
    Drop,
    Model,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    Reroute,
    SetTimer,
    Setup,
    StageFinished,
    TimerFired,
    TimerKey,
    TimerLatencyUpdated,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.observation.effects import (
    AnyEffect,
    EngineRestarted,
    Fail,
    PolicyReplaced,
    PolicyRestored,
    StartStage,
)
from tidegate.observation.observer import EngineSettings, ObserverOptions, PolicyTraceObserver
from tidegate.observation.reducer import OutcomeListener, Reducer
from tidegate.observation.stimuli import AnyStimulus, ClockAdvanced, FirstResponse, PolicyChanged, TopologyChanged

MAX_RESPONSE_MARGIN_FRACTION = 0.1
"""Maximum response margin (`tidegate.engine.ResponseMargin`) as a fraction of a request's remaining time.

Under overload the margin must not stop all requests.
"""


class Step(msgspec.Struct, frozen=True):
    """One step in the timeline of a request."""

    at_ns: int
    what: str
    """Type of the step in a word: `arrived`, `held`, `waits`, `joined`, `sent`, `ran`, `answered`, `dropped`, ..."""
    text: str
    """Description in a sentence; times count from the arrival of the request."""


class RequestTimeline(msgspec.Struct):
    """Steps of one request from arrival to its end."""

    request: Request
    steps: list[Step] = msgspec.field(default_factory=list)
    outcome: str = ""
    """`on time`, `late`, `dropped`, `failed` or `cancelled`; empty: not ended."""
    batch_id: int | None = None
    """Id of its batch, or of its last one."""
    shown: bool = False
    """Whether the policy sees the request."""
    is_late: bool = False
    """Whether the policy saw it as a late request."""

    def ms(self, at_ns: int) -> float:
        """Return an instant in ms since the arrival of the request."""
        return (at_ns - self.request.arrival_ns) / NS_PER_MS

    def add(self, at_ns: int, what: str, text: str) -> None:
        """Append a step at `at_ns`: its type `what` in a word, and a sentence.

        `text`: that sentence.
        """
        self.steps.append(Step(at_ns, what, text))


class Why(msgspec.Struct, frozen=True):
    """Cause of a policy's decision."""

    event: AnyStimulus
    """Last event that the policy got, or the engine's input if that is unknown."""
    timer: tuple[int, int] | None = None
    """Times in ns at which a fired timer was set, and for which; None for other events."""

    def then(self, timeline: RequestTimeline, workers: Mapping[int, Worker]) -> str:
        """Return the cause of a decision on the request of a timeline, as text; `workers`: by id."""
        event = self.event
        words = f"after {type(event).__name__}"
        match event:
            case RequestArrived(request=request):
                words = "it had just arrived" if request.id == timeline.request.id else f"request {request.id} arrived"
            case RequestCancelled():
                words = f"request {event.request_id} was cancelled"
            case TimerFired():
                words = f"{timer_of(timeline.request, event.key)} fired"
                if self.timer:
                    words += f", set at {in_ms(timeline.ms(self.timer[0]))} for {in_ms(timeline.ms(self.timer[1]))}"
            case WorkerReady():
                words = f"{name_of(event.worker_id, workers)} was free"
                if event.free_ns > event.now_ns:
                    words += f", or about to be, at {in_ms(timeline.ms(event.free_ns))}"
            case StageFinished():
                words = f"batch {event.batch_id} ended on {name_of(event.worker_id, workers)}"
            case BatchFailed():
                words = f"batch {event.batch_id} failed on {name_of(event.worker_id, workers)}"
            case WorkerJoined():
                words = f"worker {event.worker.name} joined"
            case WorkerLost():
                words = f"{name_of(event.worker_id, workers)} was lost"
            case ClockAdvanced():
                words = "its time had come"
            case ProfileUpdated() | TimerLatencyUpdated():
                words = "what is expected had changed"
        return words


def in_ms(milliseconds: float) -> str:
    """Return a duration in ms as text."""
    return f"{milliseconds:.3f} ms"


def timer_of(request: Request, key: TimerKey) -> str:
    """Return the name of a timer as text: most timers are named after a queue (`queue_key`)."""
    if isinstance(key, str | int):
        return f"timer {key}"
    if key[:2] == (request.model, request.shape) and key[2:] in ((request.merge_key,), ("",)):
        return "the timer of its queue"
    return "timer " + "/".join(str(part) for part in key if part != "")


def name_of(worker_id: int, workers: Mapping[int, Worker]) -> str:
    """Return the name of a worker as text; `workers`: by id."""
    worker = workers.get(worker_id)
    return f"worker {worker.name if worker else worker_id}"


class TimelineRecorder(PolicyTraceObserver, OutcomeListener):
    """Observer that keeps the timelines of selected requests, or of the latest.

    The engine also passes it the events that the policy gets (`on_policy_event`).
    """

    def __init__(self, *, only: Collection[int] | None = None, most: int = 1000) -> None:
        """Create a recorder.

        `only`: ids of the requests to record; None: all, and the oldest is forgotten beyond `most` requests.
        """
        super().__init__(ObserverOptions())
        self._only = only
        self._most = most
        self._timelines: dict[int, RequestTimeline] = {}
        self._models: dict[str, Model] = {}
        self._workers: dict[int, Worker] = {}
        self._lost: set[int] = set()
        """Workers that are gone; their names still appear."""
        self._reducer = Reducer(self)
        self._timers: dict[TimerKey, tuple[int, int]] = {}
        """When each was set, and for when."""
        self._policy_events: list[tuple[AnyEvent, Sequence[AnyCommand]]] = []
        """Events that the policy got because of the current stimulus, with its commands."""
        self._why: dict[int, Why] = {}
        """Last event before the policy dispatched or dropped requests, by request id."""

    def __iter__(self) -> Iterator[RequestTimeline]:
        return iter(self._timelines.values())

    def of(self, request_id: int) -> RequestTimeline | None:
        """Return the timeline of a request; None if it is unknown or was forgotten."""
        return self._timelines.get(request_id)

    # From the engine ---------------------------------------------------------------------------------------------

    def started(self, policy: str, options: dict[str, Any], setup: Setup, settings: EngineSettings) -> None:
        """Store the models and workers by name and id."""
        self._models = {model.name: model for model in setup.models}
        self._workers = {worker.id: worker for worker in setup.workers}

    def on_policy_event(self, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        """Record an event that the policy got, with its applied commands."""
        self._policy_events.append((event, commands))

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        """Record a stimulus: the event, the policy's decisions, the consequences."""
        policy_events, self._policy_events = self._policy_events, []
        if effects and isinstance(effects[0], EngineRestarted):
            policy_events = []  # before and after the fault: what holds are the effects
            self._timers.clear()
        begun = self._begin(event) if isinstance(event, RequestArrived) else None
        after = self._take_in(event)
        self._reducer.handled(event, ())
        for concerned, what, text in after:
            concerned.add(event.now_ns, what, text)
        for heard, answer in policy_events:
            self._hear(event, heard, answer)
        if begun and not begun.shown and not any(isinstance(e, Fail) for e in effects):
            begun.add(event.now_ns, "held", "waits for its turn: others wait for the same workers")
        self._reducer.handled(ClockAdvanced(event.now_ns), effects)
        for effect in effects:
            if isinstance(effect, StartStage):
                self._sent(event, effect)
            elif isinstance(effect, PolicyReplaced):
                self._add_to_all(event.now_ns, "policy replaced", str(effect))
            elif isinstance(effect, PolicyRestored):
                self._timers.clear()
                self._add_to_all(event.now_ns, "policy restored", f"policy {effect.policy} decides again")
        self._why.clear()

    def _hear(self, stimulus: AnyStimulus, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        """Record an event that the policy has answered."""
        if isinstance(event, RequestArrived):
            self._show(stimulus, event)
        elif isinstance(event, RequestCancelled) and not isinstance(stimulus, RequestCancelled):
            self._call_back(event)
        why = Why(event, self._timers.get(event.key) if isinstance(event, TimerFired) else None)
        if isinstance(event, TimerFired):
            self._timers.pop(event.key, None)
        for command in commands:
            match command:
                case Dispatch():
                    self._join(event.now_ns, command.batch, why)
                    for request_id in command.batch.request_ids:
                        self._why.setdefault(request_id, why)
                case Drop():
                    self._why.setdefault(command.request_id, why)
                case SetTimer():
                    self._timers[command.key] = (event.now_ns, command.at_ns)
                case CancelTimer():
                    self._timers.pop(command.key, None)
                case Reroute():
                    for concerned in self._of_batch(command.batch_id):
                        text = f"its next stages are planned again: {why.then(concerned, self._workers)}"
                        concerned.add(event.now_ns, "rerouted", text)
        if isinstance(event, RequestArrived) and (timeline := self._timelines.get(event.request.id)):
            self._wait(timeline, event.now_ns, commands)

    # Waiting -----------------------------------------------------------------------------------------------------

    def _begin(self, event: RequestArrived) -> RequestTimeline | None:
        request = event.request
        if self._only is not None and request.id not in self._only:
            return None
        if self._only is None and len(self._timelines) >= self._most:
            del self._timelines[next(iter(self._timelines))]
        timeline = self._timelines[request.id] = RequestTimeline(request)
        hosts, idle = self._hosts(request)
        underway = {number for sent in self._reducer.sent.values() for number in sent.effect.batch.request_ids}
        wait = sum(other.model == request.model and other.id not in underway for other in self._reducer.open.values())
        rows = f"{request.rows} row{'s' * (request.rows > 1)}"
        due = self._due(timeline)
        text = f"{rows} for {request.model!r}, {due}; {wait} of its model wait, {idle} of {hosts} workers are idle"
        timeline.add(event.now_ns, "arrived", text)
        return timeline

    def _due(self, timeline: RequestTimeline) -> str:
        """Return the deadline as text; a deadline a little before the SLO leaves time for the response."""
        request = timeline.request
        if request.deadline_ns == NEVER_NS:
            return "no deadline"
        due = f"due at {in_ms(timeline.ms(request.deadline_ns))}"
        model = self._models.get(request.model)
        slo_ns = model.slo_ns if model else None
        margin_ns = 0 if slo_ns is None else slo_ns - (request.deadline_ns - request.arrival_ns)
        if slo_ns is None or not 0 < margin_ns <= MAX_RESPONSE_MARGIN_FRACTION * slo_ns:
            return due
        return (
            f"{due} (the SLO is {in_ms(slo_ns / NS_PER_MS)}, {in_ms(margin_ns / NS_PER_MS)} are left for the response)"
        )

    def _show(self, stimulus: AnyStimulus, event: RequestArrived) -> None:
        """The policy learns of a request: as it arrives, when its turn has come, or after its batch failed."""
        timeline = self._timelines.get(event.request.id)
        if timeline is None:
            return
        arrives = isinstance(stimulus, RequestArrived) and stimulus.request.id == event.request.id
        if timeline.batch_id is not None:
            timeline.batch_id = None
            timeline.add(event.now_ns, "again", f"is tried again: {Why(stimulus).then(timeline, self._workers)}")
        elif event.request.is_late:
            words = "it cannot be on time any more, and a worker is left over"
            timeline.add(event.now_ns, "late", f"{words}: {Why(stimulus).then(timeline, self._workers)}")
        elif not arrives:
            what = "sent again" if timeline.shown else "its turn"
            words = "the policy receives it again" if timeline.shown else "its turn has come"
            timeline.add(event.now_ns, what, f"{words}: {Why(stimulus).then(timeline, self._workers)}")
        timeline.shown, timeline.is_late = True, event.request.is_late

    def _call_back(self, event: RequestCancelled) -> None:
        if timeline := self._timelines.get(event.request_id):
            timeline.shown = False
            turn = "waits for its turn: others have begun to wait for the same workers"
            left_over = "waits until a worker is left over: requests that can be on time want it"
            timeline.add(event.now_ns, "held", left_over if timeline.is_late else turn)

    def _wait(self, timeline: RequestTimeline, now_ns: int, commands: Sequence[AnyCommand]) -> None:
        """Record what a request waits for that the policy just received, unless it runs, or is dropped, at once."""
        if timeline.request.id in self._why:
            return
        hosts, idle = self._hosts(timeline.request)
        timers = [command for command in commands if isinstance(command, SetTimer) and command.at_ns > now_ns]
        timer, at = "", ""
        if timers:
            first = min(timers, key=lambda timer: timer.at_ns)
            timer, at = f"({timer_of(timeline.request, first.key)})", in_ms(timeline.ms(first.at_ns))
        if not idle:
            again = f"; its policy looks again at {at} {timer}" if timers else ""
            text = f"waits for a worker: none of {hosts} is idle{again}"
        elif timers:
            text = f"waits for its batch to grow, until {at} at the latest {timer}; {idle} of {hosts} workers are idle"
        else:
            text = f"waits, as the policy has it; {idle} of {hosts} workers are idle"
        timeline.add(now_ns, "waits", text)

    def _join(self, now_ns: int, batch: Batch, why: Why) -> None:
        """The policy formed a batch: its first stage starts now, or when it is planned to and its worker is free."""
        others = len(batch.request_ids) - 1
        known = self._reducer.open  # where the stream was met in its middle not all are
        rows = sum(known[request_id].rows for request_id in batch.request_ids if request_id in known)
        company = f"with {others} other{'s' * (others > 1)}, {rows} rows" if others else "alone"
        start_ns = batch.stages[0].start_ns
        for request_id in batch.request_ids:
            if timeline := self._timelines.get(request_id):
                timeline.batch_id = batch.id
                later = f", to start at {in_ms(timeline.ms(start_ns))}" if start_ns > now_ns else ""
                because = why.then(timeline, self._workers)
                timeline.add(now_ns, "joined", f"joined batch {batch.id} {company}{later}: {because}")

    # From the reducer --------------------------------------------------------------------------------------------

    def _sent(self, event: AnyStimulus, effect: StartStage) -> None:
        batch, stage = effect.batch, effect.batch.stages[effect.stage]
        for request_id in batch.request_ids:
            timeline = self._timelines.get(request_id)
            if timeline is None or timeline.outcome:
                continue
            if timeline.batch_id != batch.id:  # the engine formed it
                company = f" with {len(batch.request_ids) - 1} others" if len(batch.request_ids) > 1 else " alone"
                timeline.add(event.now_ns, "joined", f"joined batch {batch.id}{company}, formed for a late request")
                timeline.batch_id = batch.id
            part = (
                ""
                if len(batch.stages) == 1
                else f", stage {effect.stage + 1} of {len(batch.stages)} ({stage.partition})"
            )
            planned = f"planned to end at {in_ms(timeline.ms(stage.end_ns))}"
            timeline.add(event.now_ns, "sent", f"sent to {name_of(stage.worker_id, self._workers)}{part}, {planned}")

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Record the end of a stage."""
        stage = effect.batch.stages[effect.stage]
        for timeline in self._of_batch(effect.batch.id):
            planned = in_ms(stage.duration_ns / NS_PER_MS)
            took = f"ran for {in_ms((ended_ns - started_ns) / NS_PER_MS)} (planned: {planned})"
            timeline.add(ended_ns, "ran", f"{took} on {name_of(stage.worker_id, self._workers)}")

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Record the answer of a batch."""
        for request in requests:
            if timeline := self._timelines.get(request.id):
                left_ms = (request.deadline_ns - ended_ns) / NS_PER_MS
                timeline.outcome = "on time" if left_ms >= 0 else "late"
                when = (
                    ""
                    if request.deadline_ns == NEVER_NS
                    else f", {in_ms(abs(left_ms))} {'early' if left_ms >= 0 else 'late'}"
                )
                timeline.add(ended_ns, "answered", f"answered after {in_ms(timeline.ms(ended_ns))}{when}")

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a dropped request."""
        if timeline := self._timelines.get(request.id):
            why = self._why.get(request.id)
            because = f": {why.then(timeline, self._workers)}" if why else ""
            self._end(now_ns, request, "dropped", f"dropped ({reason}){because}")

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a failed request."""
        self._end(now_ns, request, "failed", f"failed: {reason}")

    def cancelled(self, now_ns: int, request: Request) -> None:
        """Record a request that its client cancelled."""
        self._end(now_ns, request, "cancelled", "its client does not wait any more")

    def _end(self, now_ns: int, request: Request, outcome: str, text: str) -> None:
        if timeline := self._timelines.get(request.id):
            timeline.outcome = outcome
            timeline.add(now_ns, outcome, text)

    # Workers -----------------------------------------------------------------------------------------------------

    def _take_in(self, event: AnyStimulus) -> list[tuple[RequestTimeline, str, str]]:
        """Take note of workers that join or leave; return the entries to add after those of the stages that ended."""
        match event:
            case FirstResponse():
                text = f"first response after {in_ms((event.now_ns - event.started_ns) / NS_PER_MS)} in its slot"
                return [(timeline, "first response", text) for timeline in self._of_batch(event.batch_id)]
            case BatchFailed():
                text = f"batch {event.batch_id} failed: {event.reason}"
                return [(timeline, "batch failed", text) for timeline in self._of_batch(event.batch_id)]
            case WorkerJoined():
                self._workers[event.worker.id] = event.worker
                self._lost.discard(event.worker.id)
            case WorkerLost():
                text = f"{name_of(event.worker_id, self._workers)} was lost"
                self._lost.add(event.worker_id)
                lost = [batch_id for batch_id, sent in self._reducer.sent.items() if sent.worker_id == event.worker_id]
                return [(timeline, "worker lost", text) for batch_id in lost for timeline in self._of_batch(batch_id)]
            case PolicyChanged():
                self._timers.clear()
                self._add_to_all(event.now_ns, "policy changed", f"{event.policy} decides from now on")
            case TopologyChanged():
                self._models = {model.name: model for model in event.models}
                self._workers = {worker.id: worker for worker in event.workers}
                self._lost.clear()
                self._timers.clear()
                self._add_to_all(event.now_ns, "plan changed", "the plan changed: the policy's successor decides")
        return []

    def _hosts(self, request: Request) -> tuple[int, int]:
        """How many workers could run the first stage of a request, and how many of them are idle."""
        model = self._models.get(request.model)
        first = {path.partitions[0] for path in model.paths} if model else set()
        here = [worker for worker in self._workers.values() if worker.id not in self._lost]
        hosts = [worker.id for worker in here if first.intersection(worker.hosts)]
        busy = {sent.worker_id for sent in self._reducer.sent.values()}
        return len(hosts), sum(worker_id not in busy for worker_id in hosts)

    def _of_batch(self, batch_id: int) -> list[RequestTimeline]:
        return [timeline for timeline in self._open() if timeline.batch_id == batch_id]

    def _open(self) -> list[RequestTimeline]:
        return [timeline for timeline in self._timelines.values() if not timeline.outcome]

    def _add_to_all(self, now_ns: int, what: str, text: str) -> None:
        for timeline in self._open():
            timeline.add(now_ns, what, text)
