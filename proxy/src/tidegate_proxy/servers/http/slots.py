"""HTTP inference of a model with slots: it waits for a slot, and occupies it until the end of the response."""

import asyncio
import time
from typing import Any

import grpc

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.scheduling.slots import Slot, SlotWaiter
from tidegate_proxy.servers.http import infer_response
from tidegate_proxy.servers.http.exchange import HttpExchange
from tidegate_proxy.servers.http.forward import HttpForwarder, TritonUnreachable
from tidegate_proxy.servers.http.interface import HttpCall
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import Routing


class HttpSlots:
    """Forwarder of HTTP inference requests to slots. Use it only in one event loop."""

    def __init__(self, inference: Inference, routing: Routing, forwarder: HttpForwarder) -> None:
        self._inference = inference
        self._routing = routing
        self._forwarder = forwarder

    async def forward(
        self, exchange: HttpExchange, call: HttpCall, body: bytes, request: PassedThrough, envelope: InferenceRequest
    ) -> None:
        """Forward a call as soon as it has a slot, and its response.

        Args:
            exchange: the client's request.
            call: what a Triton gets.
            body: the body.
            request: facts about it.
            envelope: the request as the driver schedules it.
        """
        slots: asyncio.Queue[Slot | RequestFailed] = asyncio.Queue()
        waiter = SlotWaiter(envelope, exchange.metadata, exchange.owner, slots.put_nowait, slots.put_nowait)
        self._inference.wait_for_slot(waiter, request, time.monotonic_ns(), None)
        try:
            while True:
                slot = await slots.get()
                if isinstance(slot, RequestFailed):
                    if not exchange.started:
                        await exchange.reply(infer_response.failure(slot))
                    return
                if exchange.started or await self._send(exchange, call, body, slot):
                    return
        finally:
            self._inference.leave(waiter)  # without effect once it has ended
            if waiter.slot:
                waiter.slot.give_up()

    async def _send(self, exchange: HttpExchange, call: HttpCall, body: bytes, slot: Slot) -> bool:
        """Forward a call to the Triton of its slot; return False if something else happens to the request."""

        async def send(message: Any) -> None:  # noqa: ANN401 - what ASGI sends
            if message["type"] == "http.response.body" and message.get("body"):
                slot.responded()
            await exchange.send(message)

        model = call.route.model
        slot.backend.passes(model)
        try:
            is_complete = await self._forwarder.stream(slot.backend, call, body, send)
        except TritonUnreachable as failed:
            await self._routing.unreachable(slot.backend, str(failed))
            slot.failed(grpc.StatusCode.UNAVAILABLE, f"Triton at {slot.backend.http_url} cannot be reached: {failed}")
            return False
        finally:
            slot.backend.passed(model)
        if is_complete:
            slot.finished()
        else:
            slot.responded()  # part of a response cannot be taken back: no other slot is waited for
            slot.failed(grpc.StatusCode.UNAVAILABLE, f"Triton at {slot.backend.http_url} broke its response off")
        return is_complete
