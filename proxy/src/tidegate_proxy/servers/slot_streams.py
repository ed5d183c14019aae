"""The requests of a client's stream to models with slots: each waits for a slot, and has a stream of its own there.

Requests of one sequence with one response each share one while they are in flight, which keeps their order. So each
response is known to be of its request whatever ids clients choose, and the end of a stream is the last one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import RequestFailed, own_fault
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.scheduling.slots import Slot, SlotWaiter
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import Routing
from tidegate_proxy.service.stream_passthrough import BypassedStreamRequest, StreamRelay, stream_answers
from tidegate_proxy.transport import CallFailed, RpcCall

PassBack = Callable[[BypassedStreamRequest | None, bytes], bool]
"""Gives a Triton's response to the client; False where that ends the client's stream."""


@dataclass(eq=False, repr=False)
class SlotStreams:
    """Requests of one client's stream that wait for slots, or have them."""

    _call: RpcCall
    """The client's stream."""
    _driver: Driver
    _routing: Routing
    _spawn: Callable[[RpcCall, Coroutine[Any, Any, None]], object]
    _pass_back: PassBack
    """Gives a response to the client."""
    _refuse: Callable[[PassedThrough, RequestFailed], None]
    """Tells the client of a request that failed."""
    _settled: Callable[[], None]
    """Called when a request has ended."""
    _has_room: Callable[[], bool]
    """Returns whether the client takes more responses."""

    def __post_init__(self) -> None:
        self._waiters: set[SlotWaiter] = set()
        self._streams: set[_SlotStream] = set()
        self._shared: dict[Hashable | None, _SlotStream] = {}
        """Streams that further requests of a sequence may join, by what these have in common."""

    def __len__(self) -> int:
        return len(self._waiters)

    def begin(
        self,
        inference: Inference,
        envelope: InferenceRequest,
        request: PassedThrough,
        arrival_ns: int,
        passing: BypassedStreamRequest | None,
    ) -> None:
        """Have a request wait for a slot.

        Args:
            inference: schedules it.
            envelope: the request as the driver schedules it.
            request: facts about it.
            arrival_ns: instant of its arrival.
            passing: its place among responses in order; None: its responses leave as they come.
        """
        sent: list[Slot] = []

        def granted(slot: Slot) -> None:
            following = self._shared.get(slot.shares_stream)
            if following is None or slot.shares_stream is None:
                following = _SlotStream(StreamRelay(self._taken, slot.backend, request.model), slot)
            following.requests.append(_SlotStreamRequest(waiter, slot, passing))
            slot.call_on_cancel(following.relay.end)
            following.relay.put((envelope.message, request, passing))
            sent.append(slot)
            if len(following.requests) > 1:
                return
            if slot.shares_stream is None:
                following.relay.put(None)
            else:
                self._shared[slot.shares_stream] = following
            self._streams.add(following)
            self._spawn(self._call, self._run(following))

        def failed(failure: RequestFailed) -> None:
            self._waiters.discard(waiter)
            if not sent:
                self._call.release(len(envelope.message))
            if passing:
                passing.resolve(failure)
            else:
                self._refuse(request, failure)
            self._settled()

        waiter = SlotWaiter(envelope, self._call.metadata, self._call.owner, granted, failed)
        self._waiters.add(waiter)
        inference.wait_for_slot(waiter, request, arrival_ns, self._call.remaining_s())

    def make_room(self) -> None:
        """Record that a response was read."""
        for stream in self._streams:
            stream.relay.make_room()

    def leave(self) -> None:
        """Give all requests up: their client is gone."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            self._driver.leave(waiter)
        for stream in tuple(self._streams):
            stream.relay.end()

    def _taken(self, size: int) -> None:
        self._call.release(size)
        self._settled()

    async def _run(self, stream: "_SlotStream") -> None:
        """Pass requests on, and their responses back, until the stream to the Triton ends."""
        call, relay = self._call, stream.relay
        try:
            relay.enter()
            answers = stream_answers(self._routing, stream.slot.backend, call.method, relay.messages(), call.metadata)
            async with aclosing(answers):
                async for answer in answers:
                    if not stream.requests or not self._pass_on(stream, answer):
                        break
                    while not self._has_room():  # which several slots may fill at once
                        await relay.wait_for_room(self._has_room)
            for request in tuple(stream.requests):
                self._end(request)
        except CallFailed as failure:
            stream.fail(failure.code, failure.details)
        except Exception as error:
            faults.report("a stream in a slot", error)
            stream.fail(grpc.StatusCode.INTERNAL, own_fault().details)
        except asyncio.CancelledError:
            if any(request.slot.is_held and request.waiter in self._waiters for request in stream.requests):
                raise
        finally:
            relay.close()
            self._streams.discard(stream)
            if self._shared.get(stream.slot.shares_stream) is stream:
                del self._shared[stream.slot.shares_stream]
            for request in tuple(stream.requests):
                if request.waiter not in self._waiters:
                    request.slot.give_up()
        self._settled()

    def _pass_on(self, stream: "_SlotStream", answer: bytes) -> bool:
        """Give a response to the client; return False where the stream ends with it."""
        request = stream.requests[0]
        if not request.slot.is_held:
            return False
        request.slot.responded()
        if not self._pass_back(request.passing, answer):
            return False
        if (key := stream.slot.shares_stream) is not None:
            stream.requests.popleft()
            self._waiters.discard(request.waiter)
            request.slot.finished()
            if not stream.requests:
                del self._shared[key]
                stream.relay.put(None)
        return True

    def _end(self, request: "_SlotStreamRequest") -> None:
        """End a request whose stream the Triton has ended."""
        slot, passing = request.slot, request.passing
        if passing and passing.outcome is None and request.waiter in self._waiters:
            words = f"Triton at {slot.backend.address} ended the stream early"
            slot.failed(grpc.StatusCode.UNAVAILABLE, words)
        elif slot.is_held:  # else the request has failed, or waits for another slot
            self._waiters.discard(request.waiter)
            slot.finished()


@dataclass(frozen=True, slots=True, eq=False)
class _SlotStreamRequest:
    """Request that was sent to a Triton in a stream of slots."""

    waiter: SlotWaiter
    slot: Slot
    passing: BypassedStreamRequest | None


@dataclass(frozen=True, slots=True, eq=False)
class _SlotStream:
    """Stream to a Triton: of one request, or of requests of one sequence with one response each."""

    relay: StreamRelay
    slot: Slot
    """That of the first request."""
    requests: deque[_SlotStreamRequest] = field(default_factory=deque)
    """The requests without a response; of a stream that is not shared, its request."""

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """Report that the stream failed."""
        for request in tuple(self.requests):
            request.slot.failed(code, details)
