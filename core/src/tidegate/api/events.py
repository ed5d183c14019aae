"""What happened, told to a policy. Past tense; every event carries the instant at which it is told."""

import msgspec

from tidegate.api.latency_distribution import LatencyDistribution
from tidegate.api.model import Request, Worker
from tidegate.api.profile import Profile

TimerKey = str | int | tuple[str | int, ...]
"""What a policy calls a timer. Setting a key again moves its timer."""


class Event(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag=True):
    """Something that happened."""

    now_ns: int


class RequestArrived(Event, frozen=True, tag=True):
    """A request wants to be scheduled; also one whose batch failed and that is tried again."""

    request: Request


class RequestCancelled(Event, frozen=True, tag=True):
    """A queued request is gone: its client left, or no worker is left that hosts its model. Forget it."""

    request_id: int


class StageFinished(Event, frozen=True, tag=True):
    """A worker finished a stage, which did what it was to do. If nothing else is booked there, WorkerReady follows.

    A stage that failed, or was cut short because nobody waits for it any more, is told as BatchFailed: how long that
    took says nothing about how long stages take.
    """

    batch_id: int
    stage: int
    """Index into the batch's stages. After the last one its requests are answered, but for those that were
    cancelled."""
    worker_id: int
    started_ns: int
    """When it was sent; a policy is told when the stage before it ended on this worker, if that was later."""
    ended_ns: int


class BatchFailed(Event, frozen=True, tag=True):
    """A batch will not be answered.

    Its workers are told as WorkerReady right after this, unless something else is booked on them; then requests that
    are tried again arrive anew.
    """

    batch_id: int
    stage: int
    worker_id: int
    reason: str
    retry: bool = False
    """The failure was the worker's, not the requests': elsewhere they may succeed."""
    apart: tuple[tuple[int, ...], ...] = ()
    """Ids of requests that are tried again, in groups, because one of them may have spoiled it for the others.

    From now on those of a group share batches with none but each other, so that the one at fault is found. A group is
    smaller than the batch was, which is why this ends; it does not count as a try. What is in no group has failed,
    unless `retry`.
    """


class WorkerReady(Event, frozen=True, tag=True):
    """A worker may be given a batch: nothing is booked on it, or nothing but a stage that is about to end.

    The latter is told to policies that overlap stages (`Policy.overlaps`): a batch that is dispatched there now is sent
    while the stage still runs, so that it arrives as that ends and the worker does not idle meanwhile. A worker may be
    told again, with another `free_ns`: when the stage that it runs ended, at the latest.
    """

    worker_id: int
    free_ns: int
    """The instant from which on the duration of a stage counts that is dispatched there now: its planned start.

    `now_ns` for an idle worker, later for one that still runs a stage.
    """


class WorkerDelayed(Event, frozen=True, tag=True):
    """A worker that was told to be ready, and was given nothing since, is not: its stage should be over and still runs.

    When it is, WorkerReady tells.
    """

    worker_id: int


class TimerFired(Event, frozen=True, tag=True):
    """The instant that a policy asked for with SetTimer has come.

    `now_ns` is that instant even where the driver woke late, unless it had passed when it was asked for.
    """

    key: TimerKey


class WorkerJoined(Event, frozen=True, tag=True):
    """A worker appeared, or came back; it is idle."""

    worker: Worker


class WorkerLost(Event, frozen=True, tag=True):
    """A worker is gone. What ran or was booked there is told as BatchFailed right after this.

    A batch that meanwhile runs an earlier stage on another worker is told as failed once that stage has finished.
    """

    worker_id: int


class ProfileUpdated(Event, frozen=True, tag=True):
    """Observed latencies moved the expectation: plan with this profile from now on."""

    profile: Profile


class LatencyDistributionUpdated(Event, frozen=True, tag=True):
    """Requests of an application that ran alone moved the distribution of their times: plan with this from now on."""

    times: LatencyDistribution


class TimerLatencyUpdated(Event, frozen=True, tag=True):
    """Timers fire later, or less late, than was known: who waits for a last moment has to ask for so much earlier."""

    timer_latency_ns: int
    """Takes the place of `Setup.timer_latency_ns`."""


AnyEvent = (
    RequestArrived
    | RequestCancelled
    | StageFinished
    | BatchFailed
    | WorkerReady
    | WorkerDelayed
    | TimerFired
    | WorkerJoined
    | WorkerLost
    | ProfileUpdated
    | LatencyDistributionUpdated
    | TimerLatencyUpdated
)
"""The closed union, for decoding and for exhaustive matches."""
