"""Commands that a policy returns. The engine checks each against the invariants before it applies it."""

import msgspec

from tidegate.api.events import TimerKey
from tidegate.api.model import Batch, Stage


class Command(msgspec.Struct, frozen=True, gc=False, tag_field="command", tag=True):
    """Base class of the commands that a policy returns."""


class Dispatch(Command, frozen=True, tag=True):
    """Run a batch along its stages. Its requests leave the queue; its workers are reserved for the planned times."""

    batch: Batch


class Drop(Command, frozen=True, tag=True):
    """Reject a queued request: its client gets an error at once.

    If the client still wants a late response (`Request.late_until_ns`), the engine re-queues the request without a
    deadline.
    """

    request_id: int
    reason: str
    """A short identifier such as `deadline_unreachable`; it becomes a metric label, so keep the number of reasons
    small."""


class Preempt(Command, frozen=True, tag=True):
    """Abort a running batch: its work is lost, and its requests arrive again right after its BatchFailed.

    The worker is free when BatchFailed comes: at once in the simulator. Triton cannot abort an execution; there
    StageFinished comes instead when the batch is done.
    """

    batch_id: int


class Reroute(Command, frozen=True, tag=True):
    """Replace the last stages of a batch by stages on other workers or at other times.

    Use it when a stage took longer or shorter than expected, or when a later worker was lost.
    """

    batch_id: int
    stages: tuple[Stage, ...]
    """The new stages; they replace as many stages at the end of the batch's route.

    None of those has started, and their partitions stay the same.
    """


class SetTimer(Command, frozen=True, tag=True):
    """Set a timer: TimerFired comes at `at_ns`. Each key has one timer; setting it again moves the timer."""

    key: TimerKey
    at_ns: int


class CancelTimer(Command, frozen=True, tag=True):
    """Cancel a timer. Cancelling a timer that is not set is not an error."""

    key: TimerKey


class Advise(Command, frozen=True, tag=True):
    """Recommend a change of the number of workers: positive, add that many; negative, release that many.

    Slots (`Worker.server`) are not counted: the operator says how many there are.
    """

    workers: int
    reason: str = ""


AnyCommand = Dispatch | Drop | Preempt | Reroute | SetTimer | CancelTimer | Advise
"""Union of all commands, for decoding and for exhaustive matches."""
