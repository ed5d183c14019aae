"""What an engine asks of its driver: the simulator or the proxy."""

import msgspec

from tidegate.api import Advise, Batch, Drop


class Effect(msgspec.Struct, frozen=True, gc=False, tag_field="command", tag=True):
    """Something for the driver to do. Some commands of policies are effects, too: both decode by one tag."""


class StartLeg(Effect, frozen=True, tag=True):
    """Run this leg now: its worker is free. Answer with LegFinished or BatchFailed."""

    batch: Batch
    leg: int
    rows: int
    shape: str = ""
    """The shape of its requests."""


class CancelLeg(Effect, frozen=True, tag=True):
    """Give a running leg up. Answer with BatchFailed (retry) once its worker is free, or LegFinished if it was done."""

    batch: Batch
    leg: int


class Fail(Effect, frozen=True, tag=True):
    """Tell a client that its request failed."""

    request_id: int
    reason: str


class PolicyReplaced(Effect, frozen=True, tag=True):
    """The policy broke, or a part of it; first come, first served goes on in its stead. Say so loudly."""

    policy: str
    reason: str
    part: str = ""
    """The part that was replaced, while the others go on; empty: all of it."""

    def __str__(self) -> str:
        """What broke, what goes on, and why."""
        broke = f"{self.part} of policy {self.policy}" if self.part else f"policy {self.policy}"
        return f"{broke} broke and was replaced by first come, first served: {self.reason}"


class ObserverRemoved(Effect, frozen=True, tag=True):
    """An observer raised; it sees nothing more. Say so."""

    observer: str
    """The name of its class."""
    reason: str


class EngineRestarted(Effect, frozen=True, tag=True):
    """The engine itself broke and began anew, with idle workers, nothing queued, and first come, first served.

    Tell every client that waits; forget every leg that runs: the engine knows of neither any more. What else the
    event asked for is void. Say so loudly.
    """

    policy: str
    """The name under which it runs."""
    reason: str


AnyEffect = StartLeg | CancelLeg | Fail | PolicyReplaced | ObserverRemoved | EngineRestarted | Drop | Advise
"""What a driver handles; Drop and Advise are the policy's own commands, checked and passed on."""
