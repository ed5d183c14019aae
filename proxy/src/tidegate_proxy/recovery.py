"""What becomes of the requests of a leg that failed."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

import grpc

from tidegate_proxy.backend import GOING, Backend
from tidegate_proxy.client import Client, RequestFailed
from tidegate_proxy.leg_run import LegRun
from tidegate_proxy.legs import Legs
from tidegate_proxy.membership import Membership
from tidegate_proxy.spoilers import Refusal, RetryBudget, Spoilers


class Recovery:
    """Finds out whether the Triton or a request was at fault. Lives in the event loop.

    What a Triton refused as a whole is halved: either half is a batch like any other, which the policy orders and
    places, and none of it shares a batch with others, until a request is refused alone.
    """

    def __init__(
        self,
        legs: Legs,
        membership: Membership,
        spoilers: Spoilers,
        may_spend: Callable[[RetryBudget, int], bool],
    ) -> None:
        """`may_spend(budget, requests)`: whether so many may be tried again because one spoiled their batch."""
        self._legs = legs
        self._membership = membership
        self._spoilers = spoilers
        self._may_spend = may_spend
        self._budget = RetryBudget()
        self.look_again: Callable[[Backend], Awaitable[None]] | None = None
        """Asks a Triton anew what it serves."""

    async def recover(self, run: LegRun, code: grpc.StatusCode, details: str) -> None:
        """A leg's call has failed: have its requests tried again where that may help, else tell their clients."""
        if code in GOING and await self._membership.lost(run.backend, details):
            return
        if code is grpc.StatusCode.UNAVAILABLE or (code is grpc.StatusCode.NOT_FOUND and await self._is_unloaded(run)):
            self._legs.fail(run, details, retry=True)
        else:
            self._suspect(run.clients)
            if len(run.clients) > 1 and self._may_spend(self._budget, len(run.clients)):
                self._legs.fail(run, details, halved=True)
            else:
                self._legs.fail(run, details, outcome=RequestFailed(code, details, reason="BACKEND"))
        owners = {client.owner for client in run.clients}
        if len(owners) == 1 or code is grpc.StatusCode.UNAVAILABLE:  # else it may be any one of them that is at fault
            self._membership.failed(run.backend, owners, code, details)

    async def _is_unloaded(self, run: LegRun) -> bool:
        """Whether what the leg runs, a version that was there, has gone from its Triton; if so that is taken up."""
        catalog, heading = self._legs.catalog, run.clients[0].envelope.heading
        versions = catalog.versions.get(heading.model, ())
        if self.look_again is None or (heading.version and heading.version not in versions):
            return False
        await self.look_again(run.backend)
        return self._legs.catalog is not catalog

    def answered(self, clients: Iterable[Client]) -> None:
        """A batch that not everybody could share was answered: what its clients were suspected of was not theirs."""
        for client in clients:
            if client.refusal:
                client.refusal.answered()
            self._spoilers.answered((client.owner, client.envelope.model))

    def _suspect(self, clients: Sequence[Client]) -> None:
        """Requests were refused together, or one was alone."""
        senders = [(client.owner, client.envelope.model) for client in clients]
        first = clients[0]
        if len(clients) > 1:
            refusal = first.refusal or Refusal(self._spoilers)
            for client in clients:
                client.refusal, client.runs_apart = refusal, True
            self._spoilers.suspect(senders, refusal)
        elif first.refusal:
            first.refusal.failed(senders[0])
        elif first.runs_apart:
            self._spoilers.failed_alone(senders[0])
