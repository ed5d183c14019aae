"""An inference that cannot be scheduled, on its way to a Triton as it is, and back.

No task waits for it: where most models of a Triton are passed through, this is what a request costs.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from tidegate_proxy.backend import CANCEL_AFTER_S, INFER, Backend
from tidegate_proxy.client import Outcome, RequestFailed, own_fault
from tidegate_proxy.envelope import PassedThrough
from tidegate_proxy.faults import faults
from tidegate_proxy.transport import Metadata, PendingCall

if TYPE_CHECKING:
    from tidegate_proxy.control import Control


class Passage:
    """One inference. Lives in the event loop."""

    __slots__ = (
        *("_backend", "_call", "_control", "_is_over", "_message", "_metadata"),
        *("_owner", "_request", "_sent_ns", "_then", "_tries", "_until_ns"),
    )

    def __init__(
        self,
        control: "Control",
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
        self._control = control
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
        """Send it, perhaps once more than once: see `Control.may_try_again`."""
        try:
            backend = self._control.route_inference(self._message, self._request)
        except RequestFailed as failure:
            self.end(failure)
            return
        limit_s = None
        if self._until_ns is not None:
            # A Triton that is told of a deadline may die of it: it is told a little later, if at all.
            limit_s = max(0.0, (self._until_ns - time.monotonic_ns()) / 1e9) + CANCEL_AFTER_S
        self._backend = backend
        metadata = backend.opened(self._metadata)
        self._call = backend.channel.unary(INFER, self._message, self._over, metadata, limit_s)
        backend.forwarded.add(self._call)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._is_over = True
        self._control.passages.discard(self)
        if self._call:
            self._call.cancel()

    def end(self, outcome: Outcome) -> None:
        """Hand the outcome over. Only the first counts."""
        if self._is_over:
            return
        self._is_over = True
        self._control.passages.discard(self)
        self._then(outcome)
        self._control.passed_through(self._request, self._sent_ns, ok=isinstance(outcome, bytes))

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
        if answer is None:
            if not self._is_over:
                self._control.spawn(self._recovered(backend, code, details))
            return
        if self._request.header is not None:
            self._control.did_well(backend, self._owner)
        self.end(answer)

    async def _recovered(self, backend: Backend, code: grpc.StatusCode, details: str) -> None:
        try:
            await self._recover(backend, code, details)
        except Exception as error:
            self._break(error)

    async def _recover(self, backend: Backend, code: grpc.StatusCode, details: str) -> None:
        readable = self._request.header is not None
        failure = await self._control.failure(backend, code, details, self._owner if readable else None)
        self._tries += 1
        if self._control.may_try_again(backend, self._request.model, self._tries):
            self.begin()
        else:
            self.end(failure)

    def _break(self, error: Exception) -> None:
        faults.report("an inference that was passed on", error)
        self.end(own_fault())
