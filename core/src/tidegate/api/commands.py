"""What a policy wants done. Imperative; the engine checks each against the invariants before it takes effect."""

import msgspec

from tidegate.api.events import TimerKey
from tidegate.api.model import Batch, Stage


class Command(msgspec.Struct, frozen=True, gc=False, tag_field="command", tag=True):
    """Something to be done."""


class Dispatch(Command, frozen=True, tag=True):
    """Run a batch as its stages plan it. Its requests leave the queue; its workers are booked."""

    batch: Batch


class Drop(Command, frozen=True, tag=True):
    """Give a queued request up: its client is told at once rather than too late.

    Where a late answer is wanted all the same (`Request.late_until_ns`) the request arrives again, without a deadline.
    """

    request_id: int
    reason: str
    """Short and countable, e.g. `deadline_unreachable`: it labels a metric."""


class Preempt(Command, frozen=True, tag=True):
    """Give up a batch that runs: its work is lost, its requests arrive again right after its BatchFailed.

    The worker is free when BatchFailed comes: at once in the simulator. Where an execution cannot be taken back, as on
    Triton, the batch is told as StageFinished when it is done.
    """

    batch_id: int


class Reroute(Command, frozen=True, tag=True):
    """Plan the last stages of a batch anew: on other workers, at other instants.

    For when a stage took longer or shorter than planned, or a worker further on was lost.
    """

    batch_id: int
    stages: tuple[Stage, ...]
    """The stages that replace as many at the end of its path, none of which has begun; their partitions stay."""


class SetTimer(Command, frozen=True, tag=True):
    """Tell me (TimerFired) at an instant. A key holds one timer: setting it again moves it."""

    key: TimerKey
    at_ns: int


class CancelTimer(Command, frozen=True, tag=True):
    """Forget a timer; one that is not set is no error."""

    key: TimerKey


class Advise(Command, frozen=True, tag=True):
    """How many workers the load wants: positive, more of them; negative, release so many."""

    workers: int
    reason: str = ""


AnyCommand = Dispatch | Drop | Preempt | Reroute | SetTimer | CancelTimer | Advise
"""The closed union, for decoding and for exhaustive matches."""
