"""An inference that cannot be scheduled, on its way to a Triton as it is, and back.

No task waits for it: where most models of a Triton are passed through, this is what a request costs.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from tidegate_proxy import refusal
from tidegate_proxy.backend import CANCEL_AFTER_S, INFER, Backend
from tidegate_proxy.client import Client
from tidegate_proxy.envelope import PassedThrough
from tidegate_proxy.faults import faults
from tidegate_proxy.observability.observability import Observability
from tidegate_proxy.outcome import SHUTTING_DOWN, Outcome, RequestFailed, own_fault
from tidegate_proxy.routing import Routing
from tidegate_proxy.transport import Metadata, PendingCall


class Passage:
    """One inference. Lives in the event loop."""

    __slots__ = (
        *("_backend", "_call", "_is_over", "_message", "_metadata", "_passages"),
        *("_owner", "_request", "_routing", "_sent_ns", "_then", "_tries", "_until_ns"),
    )

    def __init__(
        self,
        passages: "Passages",
        routing: Routing,
        message: bytes,
        metadata: Metadata,
        remaining_s: float | None,
        owner: str,
        then: Callable[[Outcome], None],
    ) -> None:
        """`metadata`: what goes on to the Triton; `remaining_s`: until the client's deadline, if it has one.

        `owner`: whose it is.

        `then` is called with the outcome, once, unless the passage is cancelled.
        """
        self._passages = passages
        self._routing = routing
        self._message = message
        self._metadata = metadata
        self._sent_ns = time.monotonic_ns()
        self._until_ns = None if remaining_s is None else self._sent_ns + round(remaining_s * 1e9)
        self._owner = owner
        self._then = then
        self._request = PassedThrough.of(message)
        self._backend: Backend | None = None
        self._call: PendingCall | None = None
        self._tries = 0
        self._is_over = False

    def begin(self) -> None:
        """Send it, perhaps once more than once: see `Routing.may_try_again`."""
        try:
            backend = self._routing.route_inference(self._message, self._request)
        except RequestFailed as failure:
            self.end(failure)
            return
        limit_s = None
        if self._until_ns is not None:
            # A Triton that is told of a deadline may die of it: it is told a little later, if at all.
            limit_s = max(0.0, (self._until_ns - time.monotonic_ns()) / 1e9) + CANCEL_AFTER_S
        self._backend = backend
        backend.passes(self._request.model)
        metadata = backend.opened_for_client(INFER, self._metadata)
        self._call = backend.channel.unary(INFER, self._message, self._over, metadata, limit_s)
        backend.forwarded.add(self._call)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._is_over = True
        self._passages.over(self)
        if self._call:
            self._call.cancel()

    def end(self, outcome: Outcome) -> None:
        """Hand the outcome over. Only the first counts."""
        if self._is_over:
            return
        self._is_over = True
        self._passages.over(self)
        self._then(outcome)
        self._routing.passed_through(self._request, self._sent_ns, ok=isinstance(outcome, bytes))

    def _over(self, answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        """The call to a Triton has ended."""
        try:
            self._judge(answer, code, details)
        except Exception as error:
            self._break(error)

    def _judge(self, answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        backend, call = self._backend, self._call
        assert backend
        backend.forwarded.discard(call)
        backend.passed(self._request.model)
        if answer is None:
            if not self._is_over:
                self._passages.spawn(self._recovered(backend, code, details))
            return
        if self._request.header is not None:
            self._routing.did_well(backend, self._owner)
        self.end(answer)

    async def _recovered(self, backend: Backend, code: grpc.StatusCode, details: str) -> None:
        try:
            await self._recover(backend, code, details)
        except Exception as error:
            self._break(error)

    async def _recover(self, backend: Backend, code: grpc.StatusCode, details: str) -> None:
        readable = self._request.header is not None
        failure = await self._routing.failure(backend, code, details, self._owner if readable else None)
        self._tries += 1
        if self._routing.may_try_again(backend, self._request.model, self._tries):
            self.begin()
        else:
            self.end(failure)

    def _break(self, error: Exception) -> None:
        faults.report("an inference that was passed on", error)
        self.end(own_fault())


class Passages:
    """The passages under way. Lives in the event loop."""

    def __init__(self, routing: Routing, observability: Observability) -> None:
        self._routing = routing
        self._observability = observability
        self._under_way: set[Passage] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, message: bytes, metadata: Metadata, remaining_s: float | None, owner: str, then: Callable[[Outcome], None]
    ) -> Passage:
        """Have a Triton answer a client's inference that cannot be scheduled; `then` is called with the outcome."""
        forwarded = self._routing.forwarded(metadata)
        passage = Passage(self, self._routing, message, forwarded, remaining_s, owner, then)
        self._under_way.add(passage)
        passage.begin()
        return passage

    def take_over(self, client: Client) -> None:
        """Have a request answered, as it is, that cannot be scheduled any more."""

        def answered(outcome: Outcome) -> None:
            client.resolve(outcome)
            self._observability.passed_on(client)

        self.begin(client.envelope.message, client.forwarded_metadata, None, client.owner, answered)

    def over(self, passage: Passage) -> None:
        """One has ended."""
        self._under_way.discard(passage)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have the failure of one looked at."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_all(self) -> None:
        """Tell the clients of those that are under way that there will be no answer."""
        for task in self._tasks:
            task.cancel()
        for passage in list(self._under_way):
            passage.end(RequestFailed(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN, refusal=refusal.SHUTTING_DOWN))
