"""What becomes of the requests of a leg that failed."""

from collections.abc import Awaitable, Callable

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
        elif len(run.clients) > 1 and self._may_spend(self._budget, len(run.clients)):
            refusal = run.clients[0].refusal or Refusal(self._spoilers)
            for client in run.clients:
                client.refusal = refusal
            self._legs.fail(run, details, halved=True)
        else:
            if len(run.clients) == 1:
                self._blame(run.clients[0])
            self._legs.fail(run, details, outcome=RequestFailed(code, details, reason="BACKEND"))
        self._membership.failed(run.backend, code, details)

    async def _is_unloaded(self, run: LegRun) -> bool:
        """Whether what the leg runs, a version that was there, has gone from its Triton; if so that is taken up."""
        catalog, heading = self._legs.catalog, run.clients[0].envelope.heading
        versions = catalog.versions.get(heading.model, ())
        if self.look_again is None or (heading.version and heading.version not in versions):
            return False
        await self.look_again(run.backend)
        return self._legs.catalog is not catalog

    def _blame(self, client: Client) -> None:
        sender = (client.owner, client.envelope.model)
        if client.refusal:
            client.refusal.failed(sender)
        elif client.runs_alone:
            self._spoilers.spoiled(sender)
