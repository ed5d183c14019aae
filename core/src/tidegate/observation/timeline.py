"""Timelines: what happened to a request, and why, in sentences."""

from collections.abc import Mapping

import msgspec

from tidegate.api import (
    NS_PER_MS,
    BatchFailed,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    StageFinished,
    TimerFired,
    TimerKey,
    TimerLatencyUpdated,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.observation.stimuli import AnyStimulus, ClockAdvanced

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
