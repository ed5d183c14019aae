"""What becomes of the requests of a leg that failed."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import grpc

from tidegate_proxy.backend import GOING, Backend
from tidegate_proxy.catalog import Directory
from tidegate_proxy.client import Client
from tidegate_proxy.leg_run import LegRun
from tidegate_proxy.membership import Membership
from tidegate_proxy.outcome import RequestFailed
from tidegate_proxy.settings import InForce
from tidegate_proxy.spoilers import Refusal, RetryBudget, Spoilers
from tidegate_proxy.waiting_clients import WaitingClients


@dataclass(frozen=True)
class Verdict:
    """What is done with the requests of a leg that failed: tried again, as they were or in halves, or answered so."""

    retry: bool = False
    halved: bool = False
    outcome: RequestFailed | None = None


class Recovery:
    """Finds out whether the Triton or a request was at fault. Lives in the event loop.

    What a Triton refused as a whole is halved: either half is a batch like any other, which the policy orders and
    places, and none of it shares a batch with others, until a request is refused alone.
    """

    def __init__(
        self,
        directory: Directory,
        clients: WaitingClients,
        membership: Membership,
        spoilers: Spoilers,
        in_force: InForce,
    ) -> None:
        self._directory = directory
        self._clients = clients
        self._membership = membership
        self._spoilers = spoilers
        self._in_force = in_force
        self._budget = RetryBudget()
        self.look_again: Callable[[Backend], Awaitable[None]] | None = None
        """Asks a Triton anew what it serves."""

    async def verdict(self, run: LegRun, code: grpc.StatusCode, details: str) -> Verdict | None:
        """What is done about a leg whose call has failed; None: its Triton is lost, and all that is done."""
        if code in GOING and await self._membership.lost(run.backend, details):
            return None
        if code is grpc.StatusCode.UNAVAILABLE or (code is grpc.StatusCode.NOT_FOUND and await self._is_unloaded(run)):
            return Verdict(retry=True)
        self._suspect(run.clients)
        if len(run.clients) > 1 and self._may_try_again(len(run.clients)):
            return Verdict(halved=True)
        return Verdict(outcome=RequestFailed(code, details, reason="BACKEND"))

    def failed(self, run: LegRun, code: grpc.StatusCode, details: str) -> None:
        """A leg was ended as its verdict said: unless any one of several clients may be at fault, it speaks against its
        Triton."""
        owners = {client.owner for client in run.clients}
        if len(owners) == 1 or code is grpc.StatusCode.UNAVAILABLE:
            self._membership.failed(run.backend, owners, code, details)

    def answered(self, clients: Iterable[Client]) -> None:
        """A batch that not everybody could share was answered: what its clients were suspected of was not theirs."""
        for client in clients:
            if client.refusal:
                client.refusal.answered()
            self._spoilers.answered((client.owner, client.envelope.model))

    def _may_try_again(self, requests: int) -> bool:
        """Whether so many may be tried again because one of them spoiled their batch; then they are counted."""
        return self._budget.spend(requests, self._in_force.settings.retry_share, self._clients.numbered)

    async def _is_unloaded(self, run: LegRun) -> bool:
        """Whether what the leg runs, a version that was there, has gone from its Triton; if so that is taken up."""
        catalog, heading = self._directory.catalog, run.clients[0].envelope.heading
        versions = catalog.versions.get(heading.model, ())
        if self.look_again is None or (heading.version and heading.version not in versions):
            return False
        await self.look_again(run.backend)
        return self._directory.catalog is not catalog

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
