"""Effects that an engine asks its driver, the simulator or the proxy, to carry out."""

import msgspec

from tidegate.api import Advise, Batch, Drop


class Effect(msgspec.Struct, frozen=True, gc=False, tag_field="command", tag=True):
    """Base class of effects. Some commands of policies are effects, too; both are decoded by one tag."""


class StartStage(Effect, frozen=True, tag=True):
    """Start a stage now on its free worker. The driver answers with StageFinished or BatchFailed."""

    batch: Batch
    stage: int
    rows: int
    shape: str = ""
    """Shape of the batch's requests."""


class CancelStage(Effect, frozen=True, tag=True):
    """Effect: cancel a running stage.

    The driver answers with BatchFailed (retry) once the worker is free, or StageFinished.
    """

    batch: Batch
    stage: int


class Fail(Effect, frozen=True, tag=True):
    """Effect: send an error to the client of a failed request."""

    request_id: int
    reason: str


class PolicyReplaced(Effect, frozen=True, tag=True):
    """Effect: the policy or a part of it failed; first come, first served replaces it. Log it as an error."""

    policy: str
    reason: str
    part: str = ""
    """Name of the replaced part of a composite policy; empty: the whole policy."""
    backoff_ns: int = 0
    """Time in ns after which the policy is tried again, with the next event."""

    def __str__(self) -> str:
        """Name the policy or part that broke, the reason, and when it is tried again."""
        broke = f"{self.part} of policy {self.policy}" if self.part else f"policy {self.policy}"
        again = f"; it is tried again in {self.backoff_ns / 1e9:g} s" if self.backoff_ns else ""
        return f"{broke} broke and was replaced by first come, first served: {self.reason}{again}"


class PolicyRestored(Effect, frozen=True, tag=True):
    """Effect: the failed policy is current again, with all its parts. Log it."""

    policy: str


class ObserverRemoved(Effect, frozen=True, tag=True):
    """Effect: an observer raised an exception and was removed. Log it."""

    observer: str
    """Class name of the observer."""
    reason: str


class EngineRestarted(Effect, frozen=True, tag=True):
    """An internal error made the engine rebuild its state from the observed outcomes. Log it as an error.

    Running stages go on. Waiting requests wait again, first come, first served, until the policy is tried again. The
    effects that follow belong to the new state; other effects of the event are void.
    """

    policy: str
    """Name of the policy."""
    reason: str
    failed: tuple[int, ...] = ()
    """Ids of the requests that the event named; they failed."""
    batches: tuple[int, ...] = ()
    """Ids of the batches with a running stage; the driver forgets every other stage."""


AnyEffect = (
    StartStage
    | CancelStage
    | Fail
    | PolicyReplaced
    | PolicyRestored
    | ObserverRemoved
    | EngineRestarted
    | Drop
    | Advise
)
"""Union of effects; Drop and Advise are checked commands of the policy that are passed on."""
