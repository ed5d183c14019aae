"""The part of a client's stream that bypasses scheduling and goes to one Triton."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Final

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.messages import guards
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.service.passthrough import Routing
from tidegate_proxy.transport import AsyncStream, CallFailed, Metadata
from tidegate_proxy.tritons.backend import CANCEL_AFTER_S, Backend

DRAIN_S: Final = 2.0
"""Seconds for which a Triton may continue a stream whose client has left, before it is cancelled."""
MAX_UNANSWERED: Final = 1000
"""Requests of one stream kept for statistics, because a decoupled model may never answer."""


class BypassedStreamRequest:
    """Bypassed or rejected request of a stream with one response, sent in order."""

    __slots__ = ("_settled", "outcome", "request")

    def __init__(self, request: PassedThrough, settled: Callable[[], None]) -> None:
        self.request = request
        self.outcome: bytes | RequestFailed | None = None
        """Response of the Triton as it stands in the stream, or the error; None: not yet."""
        self._settled = settled

    def resolve(self, outcome: bytes | RequestFailed) -> None:
        """Set the response or the failure."""
        self.outcome = outcome
        self._settled()


class StreamRelay:
    """Relay of one stream's messages to one Triton, with statistics of the responses."""

    def __init__(self, taken: Callable[[int], None], backend: Backend, model: str, *, is_alone: bool = False) -> None:
        """Create the stream relay.

        `taken` is called when a message was sent, with its size. `is_alone`: it is for a single request.
        """
        self.is_alone = is_alone
        self._taken = taken
        self._backend = backend
        self._model = model
        self._in_flight = 0
        """Requests that count as in flight at the Triton, from the choice of it."""
        self._messages: deque[tuple[bytes, PassedThrough, BypassedStreamRequest | None] | None] = deque()
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._unanswered: deque[tuple[PassedThrough, int, BypassedStreamRequest | None]] = deque(maxlen=MAX_UNANSWERED)
        """The latest requests on their way, each with when it left."""
        self._ended = False
        self._said_all = False
        """Whether the stream to the Triton was half-closed."""
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of messages that are not sent yet."""
        return len(self._messages)

    def enter(self) -> None:
        """Register the task that sends the messages."""
        self._task = asyncio.current_task()
        if self._ended and self._task:
            self._task.cancel()

    @property
    def unanswered(self) -> list[tuple[PassedThrough, BypassedStreamRequest | None]]:
        """Requests without a response, in order: those in flight, and those not sent yet."""
        on_their_way = [(request, passing) for request, _, passing in self._unanswered if passing is not None]
        waiting = [(message[1], message[2]) for message in self._messages if message is not None]
        return [*on_their_way, *waiting]

    @property
    def is_cut_short(self) -> bool:
        """Whether a Triton that ended the stream may not have sent all responses of decoupled models.

        If the client had half-closed the stream before, its end means that all requests are answered.
        """
        return not self._said_all and any(passing is None for _, _, passing in self._unanswered)

    def put(self, message: tuple[bytes, PassedThrough, BypassedStreamRequest | None] | None) -> None:
        """Queue a message with its routing and the receiver of its single response; None ends the stream."""
        if message is not None:
            self._in_flight += 1
            self._backend.passes(self._model)
        self._messages.append(message)
        self._more.set()

    def end(self) -> None:
        """Send no more messages, and cancel the sending task after `CANCEL_AFTER_S` seconds."""
        self._ended = True
        self._messages.clear()
        self.put(None)
        if self._task:
            asyncio.get_running_loop().call_later(CANCEL_AFTER_S, self._task.cancel)

    def close(self) -> None:
        """End the relay: requests without a response fail."""
        self._over(self._in_flight)

    def _over(self, count: int) -> None:
        self._in_flight -= count
        self._backend.passed(self._model, count)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the messages as they come."""
        while True:
            self._more.clear()
            while self._messages:
                following = self._messages.popleft()
                if following is None:
                    self._said_all = True
                    return
                message, request, passing = following
                if len(self._unanswered) == MAX_UNANSWERED:
                    self._over(1)
                self._unanswered.append((request, time.monotonic_ns(), passing))
                yield message
                self._taken(len(message))
            await self._more.wait()

    def answered(self, routing: Routing, *, ok: bool) -> BypassedStreamRequest | None:
        """Count a response, and assign it to the oldest request, as models without `decoupled` answer each once.

        Returns the receiver of the response, or None if it is forwarded at once.
        """
        if not self._unanswered:
            return None
        request, sent_ns, passing = self._unanswered.popleft()
        self._over(1)
        if ok and passing is not None:  # a response of a decoupled model does not say which request it answers
            routing.took(self._backend, self._model, sent_ns)
        routing.passed_through(request, sent_ns, ok=ok)
        return passing

    async def wait_for_room(self, there_is: Callable[[], bool]) -> None:
        """Wait until the client has read responses. `there_is`: returns whether there is room for more."""
        self._room.clear()
        if not there_is():
            await self._room.wait()

    def make_room(self) -> None:
        """Record that a response was read."""
        self._room.set()


async def stream_answers(
    routing: Routing,
    backend: Backend,
    method: str,
    messages: AsyncIterator[bytes],
    metadata: Metadata,
) -> AsyncGenerator[bytes, None]:
    """Yield the responses of one Triton to a client's stream until it ends. Raises CallFailed."""
    # A Triton that gets a deadline may die of it. The client's own call ends then, and this stream with it.
    stream = backend.stream(method, guards.for_streams(routing.forwarded(metadata)), for_client=True)
    backend.open_calls.add(stream)
    writing = asyncio.create_task(_write(stream, messages))
    try:
        while (answer := await stream.read()) is not None:
            yield answer
    finally:
        await cancel(writing)
        try:
            await _drained(stream)
        finally:
            stream.cancel()
            backend.open_calls.discard(stream)


async def _drained(stream: AsyncStream) -> None:
    """Let a stream without a reader end by itself: a Triton may die of one that is cancelled as it answers."""
    stream.half_close()
    with suppress(TimeoutError, CallFailed):
        async with asyncio.timeout(DRAIN_S):
            while await stream.read() is not None:
                pass


async def _write(stream: AsyncStream, messages: AsyncIterator[bytes]) -> None:
    """Send the messages of a stream, and that there are no more; how it ends, its reader learns."""
    async for message in messages:
        await stream.write(message)
    stream.half_close()
