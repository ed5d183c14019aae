"""gRPC server for clients: schedules inference, and answers every other call in a task of its own."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final
from weakref import WeakSet

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy.access.gate import AccessControl
from tidegate_proxy.base import refusal
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import SHUTTING_DOWN, Outcome, RequestFailed, own_fault
from tidegate_proxy.configuration.config import ServeConfig, ServerTls
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import InferenceRequest, PendingRequest
from tidegate_proxy.rollout.versions import VersionRollouts
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.servers.streams import InferStream
from tidegate_proxy.service import control
from tidegate_proxy.service.control import ControlPlaneCalls
from tidegate_proxy.service.fan_out import ControlCall
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import BypassedInference, BypassedInferences, Routing
from tidegate_proxy.service.slot_inference import SlotInference
from tidegate_proxy.transport import Metadata, RpcCall, RpcServer
from tidegate_proxy.tritons.backend import CANCEL_AFTER_S, INFER_METHOD, SERVICE_PREFIX

NewServer = Callable[[Callable[[RpcCall], None]], RpcServer]
STREAM_INFER = SERVICE_PREFIX + "ModelStreamInfer"
SERVED_METHODS: Final = frozenset(
    {control.HEALTH}
    | {
        SERVICE_PREFIX + name
        for name in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    }
)
"""Full names of the methods that Triton serves."""
LAST_WORDS_S: Final = 1.0
"""Time limit in seconds for telling clients that they get no response, before their connections are closed."""
POLL_S: Final = 0.01
LINGER_S: Final = 0.2
"""Seconds at shutdown for which late calls are rejected with a message instead of a closed connection."""


class GrpcService:
    """gRPC service with every method of Triton, parsing no more than scheduling needs."""

    def __init__(
        self,
        inference: Inference,
        driver: Driver,
        control: ControlPlaneCalls,
        routing: Routing,
        passages: BypassedInferences,
        gate: AccessControl,
        config: ServeConfig,
        new_server: NewServer,
        versions: VersionRollouts,
    ) -> None:
        """Create the gRPC service.

        `new_server`: creates the listener, in this process or at frontends, given the handler of calls; `versions`:
        chooses versions for requests.
        """
        self._versions = versions
        self._inference = inference
        self._driver = driver
        self._control = control
        self._routing = routing
        self._passages = passages
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: WeakSet[InferStream] = WeakSet()
        self._draining = False
        self._body_timeout_s = config.limits.request_timeout_s
        self._server = new_server(self.accept)

    async def listen(self, address: str, tls: ServerTls | None = None) -> int:
        """Bind and serve; return the port. Raises OSError if the address cannot be bound, and TlsError."""
        return await self._server.listen(address, tls)

    async def drain(self, until: float, serve_until: float) -> None:
        """Let calls in flight end, until an instant of the loop's clock; reject new ones.

        Clients are asked to reconnect first. No call is rejected before they had time to receive that, nor before
        `serve_until`.
        """
        await self._server.retire(until - self._loop.time())
        while self._loop.time() < min(serve_until, until):
            await asyncio.sleep(POLL_S)
        self._draining = True
        for stream in list(self._streams):
            stream.drain()
        under_load = self._server.open_calls > 0
        while self._server.open_calls and self._loop.time() < until:
            await asyncio.sleep(POLL_S)
        if under_load:
            await asyncio.sleep(LINGER_S)

    async def close(self) -> None:
        """Stop. Calls that arrive meanwhile are cut off without a reason: drain first."""
        self._draining = True
        for task in self._tasks:
            task.cancel()
        self._passages.end_all()
        await self._server.stop(LAST_WORDS_S)

    def accept(self, call: RpcCall) -> None:
        """Accept a client's call."""
        try:
            self._begin(call)
        except Exception as error:
            _break(call, error)

    def _begin(self, call: RpcCall) -> None:
        if refused := self._gate.refusal(call.method, call.metadata):
            call.end(refused.code, refused.details)
            return
        if call.method not in SERVED_METHODS:  # at once, as Triton does: its client may never send anything
            call.end(grpc.StatusCode.UNIMPLEMENTED)
            return
        call.owner = self._gate.owner(call.metadata, call.peer)
        if self._draining and call.method not in control.OF_OUR_OWN:
            call.end(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN, refusal.SHUTTING_DOWN)
        elif call.method == INFER_METHOD:
            arrival_ns = time.monotonic_ns()
            call.receive(lambda message: self._infer(call, message, arrival_ns), self._body_timeout_s)
        elif call.method == STREAM_INFER:
            stream = InferStream(
                call, call.owner, self._inference, self._driver, self._routing, self._spawn, self._versions
            )
            self._streams.add(stream)
            stream.begin()
        else:
            call.receive(lambda message: self._forward(call, message), self._body_timeout_s)

    def _infer(self, call: RpcCall, message: bytes | None, arrival_ns: int) -> None:
        try:
            if message is None:
                self._forward(call, message)
                return
            if self._versions.of_model:
                message, call = self._versions.route(message, call)
            if model := self._inference.model_to_load(message):
                self._cancel_with(call, self._spawn(call, self._infer_loaded(call, message, model, arrival_ns)))
            elif self._inference.takes_long(message):
                self._spawn(call, self._infer_aside(call, message, arrival_ns))
            else:
                self._schedule(call, message, self._inference.open(message, call.metadata), arrival_ns)
        except Exception as error:
            _break(call, error)

    async def _infer_loaded(self, call: RpcCall, message: bytes, model: str, arrival_ns: int) -> None:
        """Have a request scheduled once its model is loaded."""
        try:
            await self._inference.load(model, call.remaining_s(), call.owner)
        except RequestFailed as failure:
            _answer(call, failure)
            return
        await self._infer_aside(call, message, arrival_ns)

    async def _infer_aside(self, call: RpcCall, message: bytes, arrival_ns: int) -> None:
        """Have a large message opened in a thread of its own."""
        envelope = await asyncio.to_thread(self._inference.open, message, call.metadata)
        self._schedule(call, message, envelope, arrival_ns)

    def _schedule(self, call: RpcCall, message: bytes, envelope: InferenceRequest | None, arrival_ns: int) -> None:
        """Have a request scheduled, or sent on unchanged if it cannot be."""
        if envelope is None:
            self._forward(call, message)
            return
        client = _UnaryClient(envelope, call, self._driver, call.owner)
        self._inference.handle(client, arrival_ns, call.remaining_s())
        call.add_disconnect_callback(client.leave)

    def _forward(self, call: RpcCall, message: bytes | None) -> None:
        """Have a call answered by a task, as Triton would or by Triton."""
        if message is None:
            call.end(grpc.StatusCode.INTERNAL, "no message was received")
            return
        work: BypassedInference | SlotInference | asyncio.Task[None] | None
        if call.method == INFER_METHOD:
            work = self._infer_unscheduled(call, message)
            if work is None:
                return
        else:
            work = self._spawn(call, self._answer(call, message))

        def cancel() -> None:
            self._loop.call_later(CANCEL_AFTER_S, work.cancel)

        call.add_disconnect_callback(cancel)

    def _infer_unscheduled(self, call: RpcCall, message: bytes) -> BypassedInference | SlotInference | None:
        """Have an inference wait for a slot of its model, or bypass scheduling where that has none; None: rejected."""

        def answered(outcome: Outcome) -> None:
            _answer(call, outcome)

        request = PassedThrough.of(message)
        if (named_first := request.with_name_first(message)) is not None:
            self._infer(call, named_first, time.monotonic_ns())
            return None
        remaining_s = call.remaining_s()
        if self._inference.has_slots(message):
            waiting = SlotInference(self._driver, message, request, answered)
            if waiting.begin(self._inference, self._routing, call.metadata, remaining_s, call.owner):
                return waiting
        if rejected := self._gate.why_over_limit(call.owner):
            answered(rejected)
            return None
        return self._passages.begin(message, call.metadata, remaining_s, call.owner, answered, request)

    async def _answer(self, call: RpcCall, message: bytes) -> None:
        try:
            answer = await self._control.unary(ControlCall(call.method, message, call.metadata, call.remaining_s()))
        except RequestFailed as failure:
            call.end(failure.code, failure.details, failure.reason)
        else:
            call.answer(answer)

    def _cancel_with(self, call: RpcCall, task: asyncio.Task[None]) -> None:
        """Cancel a task once its client has left."""

        def cancel() -> None:
            task.cancel()

        call.add_disconnect_callback(cancel)

    def _spawn(self, call: RpcCall, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine for a call; if it fails, so does the call."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done(call))
        return task

    def _done(self, call: RpcCall) -> Callable[[asyncio.Task[None]], None]:
        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                # Or its client has left, who does not see it.
                call.end(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN, refusal.SHUTTING_DOWN)
            elif error := task.exception():
                faults.report(f"answering {call.method.rpartition('/')[2]}", error)
                call.end(grpc.StatusCode.INTERNAL, own_fault().details, refusal.INTERNAL_ERROR)

        return done


class _UnaryClient(PendingRequest):
    """One that waits for the answer to a ModelInfer."""

    __slots__ = ("_call", "_driver")

    def __init__(self, envelope: InferenceRequest, call: RpcCall, driver: Driver, owner: str) -> None:
        super().__init__(envelope, owner)
        self._call = call
        self._driver = driver

    @property
    def metadata(self) -> Metadata:
        return self._call.metadata

    def resolve(self, outcome: Outcome) -> None:
        _answer(self._call, outcome)

    def leave(self) -> None:
        self._driver.leave(self)


def _break(call: RpcCall, error: Exception) -> None:
    """A fault of Tidegate's own ends the call that it met."""
    faults.report("a call", error)
    failed = own_fault()
    call.end(failed.code, failed.details, failed.reason)


def _answer(call: RpcCall, outcome: Outcome) -> None:
    if isinstance(outcome, RequestFailed):
        call.end(outcome.code, outcome.details, outcome.grpc_reason)
    else:
        call.answer(outcome)
