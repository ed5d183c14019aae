"""Events that a policy handles. Every event carries the time at which the policy gets it."""

import msgspec

from tidegate.api.latency_distribution import LatencyDistribution
from tidegate.api.model import Request, Worker
from tidegate.api.profile import Profile

TimerKey = str | int | tuple[str | int, ...]
"""Name that a policy gives to a timer. Setting a key again moves its timer."""


class Event(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag=True):
    """Base class of the events that a policy handles."""

    now_ns: int


class RequestArrived(Event, frozen=True, tag=True):
    """A request is ready to be scheduled. Requests of a failed batch arrive again if they are retried."""

    request: Request


class RequestCancelled(Event, frozen=True, tag=True):
    """A queued request is gone: its client left, or no worker hosts its model any more. Remove it from the queue."""

    request_id: int


class StageFinished(Event, frozen=True, tag=True):
    """A worker finished a stage successfully. WorkerReady follows unless the worker has another reservation.

    A stage that failed or was cut short is reported as BatchFailed instead: its duration says nothing about latency.
    """

    batch_id: int
    stage: int
    """Index into the batch's stages. After the last stage the engine answers its requests, except cancelled ones."""
    worker_id: int
    started_ns: int
    """Time at which the stage was sent, or at which the worker finished its previous stage, if that was later."""
    ended_ns: int


class BatchFailed(Event, frozen=True, tag=True):
    """A batch failed and will not be answered.

    WorkerReady for its workers follows, unless they have other reservations; then the retried requests arrive again.
    """

    batch_id: int
    stage: int
    worker_id: int
    reason: str
    retry: bool = False
    """True: the worker is to blame, not the requests; they may succeed elsewhere."""
    apart: tuple[tuple[int, ...], ...] = ()
    """Ids of retried requests, in groups, when one request of the batch may be at fault (a poison request).

    From now on requests of a group are batched only with each other, so that the poison request is isolated. Each group
    is smaller than the batch, so the search ends; it does not count as a retry. Requests in no group have failed,
    unless `retry`.
    """


class WorkerReady(Event, frozen=True, tag=True):
    """A worker can be given a batch: it is idle, or its last stage is about to end.

    Policies with `supports_pipelined_dispatch` get the event before the stage ends: they dispatch early, so that the
    worker is never idle between batches. The event may come again with another `free_ns`, at the latest when the stage
    ended.
    """

    worker_id: int
    free_ns: int
    """Time from which a stage dispatched now runs: use it as the planned start.

    Equal to `now_ns` for an idle worker, later for one that still runs a stage.
    """


class WorkerDelayed(Event, frozen=True, tag=True):
    """A worker that was announced by WorkerReady and got no batch is not ready: its last stage is overdue.

    WorkerReady comes again when that stage ends.
    """

    worker_id: int


class TimerFired(Event, frozen=True, tag=True):
    """A timer set by SetTimer is due.

    `now_ns` is the requested time even if the driver woke late, unless that time had passed when the timer was set.
    """

    key: TimerKey


class WorkerJoined(Event, frozen=True, tag=True):
    """A worker appeared or came back; it is idle."""

    worker: Worker


class WorkerLost(Event, frozen=True, tag=True):
    """A worker is gone. BatchFailed for its running and reserved batches follows.

    A batch that still runs an earlier stage on another worker fails when that stage has finished.
    """

    worker_id: int


class ProfileUpdated(Event, frozen=True, tag=True):
    """Observed latency changed a profile; use the new profile from now on."""

    profile: Profile


class LatencyDistributionUpdated(Event, frozen=True, tag=True):
    """Latency distribution of an application that changed by new observations; use the new one from now on."""

    times: LatencyDistribution


class TimerLatencyUpdated(Event, frozen=True, tag=True):
    """Changed latency of timers: set timers by that much earlier than the last possible moment."""

    timer_latency_ns: int
    """The new value of `Setup.timer_latency_ns`, in ns."""


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
"""Union of all events, for decoding and for exhaustive matches."""
