"""One leg of a batch while it runs on its Triton."""

import asyncio
from dataclasses import dataclass

from tidegate.engine import StartLeg
from tidegate_proxy.backend import Backend
from tidegate_proxy.client import Client
from tidegate_proxy.observability.tracing import Execution
from tidegate_proxy.payload import Payload, Stage
from tidegate_proxy.transport import PendingCall


@dataclass(slots=True, eq=False)
class LegRun:
    """A leg on its Triton."""

    effect: StartLeg
    worker_id: int
    stage: Stage
    payload: Payload
    clients: list[Client]
    """The clients of the whole batch: its rows stay where they are when one leaves."""
    started_ns: int
    waiting: int
    """Clients that have not left."""
    execution: Execution | None = None
    """For those who look on."""
    call: PendingCall | None = None
    recovery: asyncio.Task[None] | None = None
    """What is done about its failure."""

    @property
    def batch_id(self) -> int:
        """Its batch."""
        return self.effect.batch.id

    @property
    def backend(self) -> Backend:
        """Where it runs."""
        return self.stage.backend

    @property
    def planned_ns(self) -> int:
        """How long it is planned to take."""
        return self.effect.batch.legs[self.effect.leg].duration_ns

    @property
    def is_last(self) -> bool:
        """Whether its batch is answered after it."""
        return self.effect.leg + 1 == len(self.effect.batch.legs)

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.waiting == 0

    def stop(self) -> None:
        """Nobody wants to know how it ends."""
        if self.call:
            self.call.cancel()
        if self.recovery:
            self.recovery.cancel()
        self.payload.close(finished=False)
