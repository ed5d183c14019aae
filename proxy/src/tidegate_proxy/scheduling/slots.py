"""Slots: requests that occupy a worker from their dispatch to their last response, such as streams.

A request that waits for a slot waits in the engine like any other. Its stage has no payload: the server that its
client is connected to sends the request, in a stream or over HTTP, and reports the first and the last response.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import grpc

from tidegate.engine import FirstResponse
from tidegate_proxy.base.outcome import Outcome, RequestFailed
from tidegate_proxy.messages.request import InferenceRequest, PendingRequest
from tidegate_proxy.observability.metrics import Metrics
from tidegate_proxy.scheduling.clock import LiveEngine
from tidegate_proxy.scheduling.in_flight import PendingRequests, RunningStages, StageRun
from tidegate_proxy.transport import Metadata

HOLDER_LEFT: Final = "its stream was given up"


class Slot:
    """Slot of a Triton that a request occupies; after its end every call is without effect."""

    __slots__ = ("_gap_count", "_gap_sum_ns", "_on_cancel", "_response_ns", "backend", "occupied", "run")

    def __init__(self, slots: "OccupiedSlots", run: StageRun) -> None:
        self.occupied = slots
        self.run = run
        self.backend = run.backend
        self._on_cancel: Callable[[], None] | None = None
        self._response_ns = self._gap_sum_ns = self._gap_count = 0

    @property
    def is_held(self) -> bool:
        """Whether the request still occupies the slot."""
        return self.run in self.occupied.running

    @property
    def shares_stream(self) -> Hashable | None:
        """Key of the requests that share a stream to the Triton, in order; None: each has its own."""
        return None

    @property
    def has_responded(self) -> bool:
        """Whether the request had a response."""
        return self._response_ns > 0

    def begin_member(self) -> None:
        """Begin a request of the sequence that has the slot, while no other runs: no gap is counted from before it."""
        if self._response_ns:
            self._response_ns = time.monotonic_ns()

    def call_on_cancel(self, end: Callable[[], None]) -> None:
        """Have `end` called when the slot is lost with its Triton, or its client has left, to end the holder's call."""
        self._on_cancel = end

    def responded(self) -> None:
        """Record a response."""
        if not self.is_held:
            return
        if before_ns := self._response_ns:
            self._response_ns = self.occupied.respond_again(self.run, before_ns)
            self._gap_sum_ns += self._response_ns - before_ns
            self._gap_count += 1
        else:
            self._response_ns = self.occupied.respond_first(self.run)

    def finished(self) -> None:
        """Free the slot after the last response."""
        if self.is_held:
            self.occupied.finish(self.run, self._gap_sum_ns // self._gap_count if self._gap_count else None)

    def failed(self, code: grpc.StatusCode, details: str) -> None:
        """Report that the call to the Triton failed; the request fails, or gets another slot."""
        if self.is_held:
            self.occupied.fail(self.run, code, details)

    def give_up(self) -> None:
        """Free the slot of a request that no client waits for any more, unless its failure is being dealt with."""
        if self.is_held and self.run.recovery is None:
            self.occupied.abandon(self.run, HOLDER_LEFT)

    def cancel(self) -> None:
        """Have the holder end its call."""
        if self._on_cancel:
            self._on_cancel()


class SlotWaiter(PendingRequest):
    """Request that waits for a slot, or has one."""

    __slots__ = ("_failed", "_granted", "_metadata", "slot")

    def __init__(
        self,
        envelope: InferenceRequest,
        metadata: Metadata,
        owner: str,
        granted: Callable[[Slot], None],
        failed: Callable[[RequestFailed], None],
    ) -> None:
        """Create the request of a client.

        Args:
            envelope: what scheduling needs to know of it.
            metadata: that of the client's call.
            owner: the client.
            granted: called with the slot; again, with another one, if the first is lost before a response.
            failed: called once if it is rejected or failed.
        """
        super().__init__(envelope, owner)
        self._metadata = metadata
        self._granted = granted
        self._failed = failed
        self.slot: Slot | None = None
        """The slot that it has; None: it waits."""

    @property
    def metadata(self) -> Metadata:
        """Metadata of the request."""
        return self._metadata

    def take(self, slot: Slot) -> None:
        """Take the slot."""
        self.slot = slot
        self._granted(slot)

    def resolve(self, outcome: Outcome) -> None:
        """Pass the failure on."""
        if isinstance(outcome, RequestFailed):
            self._failed(outcome)


@dataclass(eq=False, repr=False)
class OccupiedSlots:
    """All slots that requests occupy. Use it only in one event loop."""

    _engine: LiveEngine
    _clients: PendingRequests
    running: RunningStages
    _metrics: Metrics
    _finish: Callable[[StageRun, int], None]
    """Tells the engine that a stage ended well, at an instant in ns."""
    _fail: Callable[[StageRun, grpc.StatusCode, str], None]
    """Deals with a stage whose call failed, and with its requests."""
    abandon: Callable[[StageRun, str], None]
    """Ends a stage that no client waits for, with a reason."""
    _limit_changed: Callable[[StageRun], None]
    """Takes up the changed concurrency limit of a stage's model at its Triton."""

    def occupy(self, run: StageRun, client: SlotWaiter) -> None:
        """Give a slot to a request, whose holder sends it."""
        run.is_slot = True
        if limit := run.backend.limits.get(run.effect.batch.model):
            run.limit = limit
            limit.begin(run.started_ns)
        slot = Slot(self, run)
        run.is_ended_by(slot.cancel)
        client.take(slot)

    def respond_first(self, run: StageRun) -> int:
        """Tell the engine of the first response; return its instant in ns."""
        self._engine.catch_up()
        now_ns = run.clients[0].ended_ns = time.monotonic_ns()
        run.backend.heard_ns = now_ns
        self._engine.take_in(FirstResponse(now_ns, run.batch_id, run.effect.stage, run.worker_id, run.started_ns))
        self._count(run, now_ns)
        return now_ns

    def respond_again(self, run: StageRun, before_ns: int) -> int:
        """Count a further response after one at `before_ns`; return its instant in ns."""
        now_ns = run.backend.heard_ns = time.monotonic_ns()
        self._metrics.responded(run.effect.batch.model, now_ns - before_ns)
        self._count(run, now_ns)
        return now_ns

    def fail(self, run: StageRun, code: grpc.StatusCode, details: str) -> None:
        """Free the slot of a request whose call failed, once it is known whether its Triton is lost.

        A request with a response fails at once, since it gets no other slot: the look at a silent Triton takes
        seconds.
        """
        if run.clients[0].ended_ns:
            self._clients.fail(run.clients[0].request_id, RequestFailed(code, details, category="BACKEND"))
        self._fail(run, code, details)

    def _count(self, run: StageRun, now_ns: int) -> None:
        if run.limit and run.limit.respond(now_ns):
            self._limit_changed(run)

    def finish(self, run: StageRun, gap_ns: int | None) -> None:
        """Free the slot of a request that has its last response.

        `gap_ns`: mean time between its responses, in ns; None: it had one.
        """
        self._engine.catch_up()
        if gap_ns is not None:
            self._metrics.stream_ended(run.effect.batch.model, gap_ns)
        client = run.clients[0]
        if not client.ended_ns:
            self._count(run, time.monotonic_ns())
        ended_ns = self.running.end(run, well=True)
        client.ended_ns = client.ended_ns or ended_ns
        self._finish(run, ended_ns)
        self._clients.conclude(client, run)
        run.payload.close(finished=True)
