"""Failure handling: retries after a failed batch, and detection of poison requests."""

import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages.request import BatchRefusal, PendingRequest, Sender
from tidegate_proxy.scheduling.in_flight import PendingRequests, StageRun
from tidegate_proxy.scheduling.membership import Membership
from tidegate_proxy.tritons.backend import Backend, is_shutdown
from tidegate_proxy.tritons.catalog import CurrentCatalog

FIRST_ALONE: Final = 8
MAX_ALONE: Final = 256
"""Number of a sender's requests that run alone after a poison request of it."""
MAX_SENDERS: Final = 1024
"""Number of senders remembered of either sort; the oldest are dropped first."""


class PoisonRequestTracker:
    """Senders of recent poison requests, and suspected ones."""

    def __init__(self) -> None:
        self.alone: OrderedDict[Sender, tuple[int, int]] = OrderedDict()
        """Requests that still run alone, and how many there were at first, by sender."""
        self.suspects: OrderedDict[Sender, tuple[int, BatchRefusal]] = OrderedDict()
        """Half of the batch and the refusal for which a sender is suspected."""
        self._halves = itertools.count()

    def company(self, sender: Sender, request_id: int) -> str:
        """Return the part of a request's merge key that separates it from others; "" if it may share any batch."""
        left, alone = self.alone.get(sender, (0, 0))
        if left > 1:
            self.alone[sender] = (left - 1, alone)
        elif left:
            del self.alone[sender]
        if left:
            return f"/alone {request_id}"
        half, _ = self.suspects.get(sender, (None, None))
        return "" if half is None else f"/suspects {half}"

    def suspect(self, senders: Iterable[Sender], refusal: BatchRefusal) -> None:
        """Suspect the senders of a batch that was refused."""
        known = list(dict.fromkeys(sender for sender in senders if sender[0]))
        middle = len(known) // 2
        for part in (known[:middle], known[middle:]):
            half = next(self._halves)
            for sender in part:
                self.suspects.pop(sender, None)
                self.suspects[sender] = half, refusal
        while len(self.suspects) > MAX_SENDERS:
            self.suspects.popitem(last=False)

    def answered(self, sender: Sender) -> None:
        """Record that a separated request was answered: its sender is no longer suspected."""
        _, refusal = self.suspects.pop(sender, (None, None))
        if refusal:
            refusal.sender_answered()

    def failed_alone(self, sender: Sender) -> None:
        """Record that a retried request failed alone."""
        _, refusal = self.suspects.get(sender, (None, None))
        if refusal is None or refusal.somebody_answered:
            self.poisoned(sender)
        else:  # as long as no request is answered it may be the Triton
            self.suspect([sender], refusal)

    def poisoned(self, sender: Sender) -> None:
        """Record a poison request of a sender."""
        if not sender[0]:
            return
        self.suspects.pop(sender, None)
        _, before = self.alone.pop(sender, (0, FIRST_ALONE // 2))
        alone = min(MAX_ALONE, 2 * before)
        self.alone[sender] = (alone, alone)
        if len(self.alone) > MAX_SENDERS:
            self.alone.popitem(last=False)


class RetryBudget:
    """Budget of retries for requests of refused batches: a fraction of all requests, plus an initial amount."""

    FLOOR: Final = 100
    CEILING: Final = 1000
    """Maximum retries at once after a long time without failures."""

    def __init__(self) -> None:
        self._spent = 0.0

    def spend(self, requests: int, share: float, total: int) -> bool:
        """Return whether this many retries are allowed after `total` requests so far; if so, count them.

        `share`: retries that each request adds to the budget.
        """
        earned = self.FLOOR + share * total
        self._spent = max(self._spent, earned - self.CEILING)
        if self._spent + requests > earned:
            return False
        self._spent += requests
        return True


@dataclass(frozen=True)
class FailureVerdict:
    """Verdict on the requests of a failed stage: retry them, as they were or in halves, or answer with an error."""

    retry: bool = False
    halved: bool = False
    outcome: RequestFailed | None = None


LookAgain = Callable[[Backend], Awaitable[None]]


async def skip_health_check(_backend: Backend) -> None:
    """Do not refresh the models of a Triton, where nothing looks for changes."""


@dataclass(eq=False, repr=False)
class Recovery:
    """Detector of whether the Triton or a request was at fault. Use it only in the event loop.

    A refused batch is halved: each half is a batch like any other for the policy, but does not share batches with other
    requests, until a request is refused alone.
    """

    _directory: CurrentCatalog
    _clients: PendingRequests
    _membership: Membership
    _poison_requests: PoisonRequestTracker
    _in_force: SettingsHolder
    _look_again: LookAgain
    """Refreshes the models of a Triton."""

    def __post_init__(self) -> None:
        self._budget = RetryBudget()

    async def verdict(self, run: StageRun, code: grpc.StatusCode, details: str) -> FailureVerdict | None:
        """Return the verdict on a failed stage; None if its Triton is lost, which handles everything.

        `details`: message of the error.
        """
        if is_shutdown(code, details) and await self._membership.lost(run.backend, details):
            return None
        if code is grpc.StatusCode.NOT_FOUND:
            may_retry = await self._is_unloaded(run)
        else:
            may_retry = is_shutdown(code, details)
        if may_retry:
            return FailureVerdict(retry=True)
        self._suspect(run.clients)
        if len(run.clients) > 1 and self._may_try_again(len(run.clients)):
            return FailureVerdict(halved=True)
        return FailureVerdict(outcome=RequestFailed(code, details, category="BACKEND"))

    def failed(self, run: StageRun, code: grpc.StatusCode, details: str) -> None:
        """Count a failed stage against its Triton, unless any one of several clients may be at fault."""
        owners = {client.owner for client in run.clients}
        if len(owners) == 1 or code is grpc.StatusCode.UNAVAILABLE:
            self._membership.failed(run.backend, owners, code, details)

    def answered(self, clients: Iterable[PendingRequest]) -> None:
        """Clear the suspicion against clients of a separated batch that was answered."""
        for client in clients:
            if client.refusal:
                client.refusal.answered()
            self._poison_requests.answered((client.owner, client.envelope.model))

    def _may_try_again(self, requests: int) -> bool:
        """Whether this many may be tried again because one of them poisoned their batch; then they are counted."""
        return self._budget.spend(requests, self._in_force.settings.retry_share, self._clients.numbered)

    async def _is_unloaded(self, run: StageRun) -> bool:
        """Whether what the stage runs, a version that was there, has gone from its Triton; if so that is taken up."""
        catalog, heading = self._directory.catalog, run.clients[0].envelope.heading
        versions = catalog.versions.get(heading.model, ())
        if heading.version and heading.version not in versions:
            return False
        await self._look_again(run.backend)
        return self._directory.catalog is not catalog

    def _suspect(self, clients: Sequence[PendingRequest]) -> None:
        """Requests were refused together, or one was alone."""
        senders = [(client.owner, client.envelope.model) for client in clients]
        first = clients[0]
        if len(clients) > 1:
            refusal = first.refusal or BatchRefusal(self._poison_requests.poisoned)
            for client in clients:
                client.refusal, client.runs_apart = refusal, True
            self._poison_requests.suspect(senders, refusal)
        elif first.refusal:
            first.refusal.failed(senders[0])
        elif first.runs_apart:
            self._poison_requests.failed_alone(senders[0])
