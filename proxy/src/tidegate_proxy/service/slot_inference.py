"""Inference of a model with slots over ModelInfer: it waits for a slot, and occupies it until its response."""

import time
from collections.abc import Callable

import grpc

from tidegate_proxy.base.outcome import Outcome, RequestFailed
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.scheduling.slots import Slot, SlotWaiter
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import Routing
from tidegate_proxy.transport import Metadata
from tidegate_proxy.tritons.backend import INFER_METHOD


class SlotInference:
    """One ModelInfer of a model with slots. Call only from the event loop."""

    __slots__ = ("_driver", "_message", "_metadata", "_request", "_then", "_waiter")

    def __init__(self, driver: Driver, message: bytes, request: PassedThrough, then: Callable[[Outcome], None]) -> None:
        """Create the inference.

        `request`: facts about the message. `then`: called once with the outcome, unless it is cancelled.
        """
        self._driver = driver
        self._message = message
        self._request = request
        self._then = then
        self._metadata: Metadata = ()
        self._waiter: SlotWaiter | None = None

    def begin(
        self, inference: Inference, routing: Routing, metadata: Metadata, remaining_s: float | None, owner: str
    ) -> bool:
        """Have it wait for a slot; return False for a request of a model without slots, which is bypassed.

        Args:
            inference: schedules it.
            routing: says what of it no Triton may get.
            metadata: that of the client's call.
            remaining_s: seconds until the client's deadline, or None.
            owner: the client.
        """
        request = self._request
        envelope = inference.open_for_slot(self._message, request, metadata)
        if envelope is None:
            return False
        try:
            routing.check_inference(self._message, request)
        except RequestFailed as failure:
            self._then(failure)
            return True
        self._metadata = routing.forwarded(metadata)
        self._waiter = SlotWaiter(envelope, metadata, owner, self._send, self._then)
        inference.wait_for_slot(self._waiter, request, time.monotonic_ns(), remaining_s)
        return True

    def cancel(self) -> None:
        """Cancel the request, because no client waits for it any more."""
        if self._waiter:
            self._driver.leave(self._waiter)

    def _send(self, slot: Slot) -> None:
        def over(answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
            backend.open_calls.discard(call)
            backend.passed(self._request.model)
            if answer is None:
                slot.failed(code, details)
            elif slot.is_held:
                slot.finished()
                self._then(answer)

        backend = slot.backend
        backend.passes(self._request.model)
        metadata = backend.opened_for_client(INFER_METHOD, self._metadata)
        call = backend.channel.unary(INFER_METHOD, self._message, over, metadata)
        backend.open_calls.add(call)
        slot.call_on_cancel(call.cancel)
