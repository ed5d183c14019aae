"""The requests of a client's stream to models with slots: each waits for a slot, and has a stream of its own there.

So each response is known to be of its request whatever ids clients choose, and the end of that stream is the last one.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import grpc

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import RequestFailed, own_fault
from tidegate_proxy.messages.request import InferenceRequest, PassedThrough
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.scheduling.slots import Slot, SlotWaiter
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import Routing
from tidegate_proxy.service.stream_passthrough import BypassedStreamRequest, StreamRelay, stream_answers
from tidegate_proxy.transport import CallFailed, RpcCall

PassBack = Callable[[BypassedStreamRequest | None, bytes], bool]
"""Gives a Triton's response to the client; False where that ends the client's stream."""


class SlotStreams:
    """Requests of one client's stream that wait for slots, or have them."""

    def __init__(
        self,
        call: RpcCall,
        driver: Driver,
        routing: Routing,
        spawn: Callable[[RpcCall, Coroutine[Any, Any, None]], object],
        pass_back: PassBack,
        refuse: Callable[[PassedThrough, RequestFailed], None],
        settled: Callable[[], None],
        has_room: Callable[[], bool],
    ) -> None:
        """Create it without requests.

        Args:
            call: the client's stream.
            driver: admits the requests.
            routing: knows the Tritons.
            spawn: runs a task for the client's call.
            pass_back: gives a response to the client.
            refuse: tells the client of a request that failed.
            settled: called when a request has ended.
            has_room: whether the client takes more responses.
        """
        self._call = call
        self._driver = driver
        self._routing = routing
        self._spawn = spawn
        self._pass_back = pass_back
        self._refuse = refuse
        self._settled = settled
        self._has_room = has_room
        self._waiters: set[SlotWaiter] = set()
        self._relays: set[StreamRelay] = set()

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
            relay = StreamRelay(self._taken if not sent else _is_taken, slot.backend, request.model)
            sent.append(slot)
            slot.call_on_cancel(relay.end)
            relay.put((envelope.message, request, passing))
            relay.put(None)
            self._relays.add(relay)
            self._spawn(self._call, self._run(waiter, slot, relay, passing))

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
        inference.handle(waiter, arrival_ns, self._call.remaining_s())

    def make_room(self) -> None:
        """Record that a response was read."""
        for relay in self._relays:
            relay.make_room()

    def leave(self) -> None:
        """Give all requests up: their client is gone."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            self._driver.leave(waiter)
        for relay in list(self._relays):
            relay.end()

    def _taken(self, size: int) -> None:
        self._call.release(size)
        self._settled()

    async def _run(
        self, waiter: SlotWaiter, slot: Slot, relay: StreamRelay, passing: BypassedStreamRequest | None
    ) -> None:
        """Pass a request on, and its responses back, until its slot's stream ends."""
        call = self._call
        try:
            relay.enter()
            answers = stream_answers(self._routing, slot.backend, call.method, relay.messages(), call.metadata)
            async with aclosing(answers):
                async for answer in answers:
                    if not slot.is_held:
                        break
                    slot.responded()
                    if not self._pass_back(passing, answer):
                        break
                    while not self._has_room():  # which several slots may fill at once
                        await relay.wait_for_room(self._has_room)
            if passing and passing.outcome is None and waiter in self._waiters:
                words = f"Triton at {slot.backend.address} ended the stream early"
                slot.failed(grpc.StatusCode.UNAVAILABLE, words)
            elif slot.is_held:  # else the request has failed, or waits for another slot
                self._waiters.discard(waiter)
                slot.finished()
        except CallFailed as failure:
            slot.failed(failure.code, failure.details)
        except Exception as error:
            faults.report("a stream in a slot", error)
            slot.failed(grpc.StatusCode.INTERNAL, own_fault().details)
        except asyncio.CancelledError:
            if slot.is_held and waiter in self._waiters:
                raise
        finally:
            relay.close()
            self._relays.discard(relay)
            if waiter not in self._waiters:
                slot.give_up()
        self._settled()


def _is_taken(_size: int) -> None:
    """The client was told before, when the request was first sent."""
