"""The gRPC server that clients see: ModelInfer is scheduled, every other call is forwarded as bytes."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc

from tidegate_proxy.backend import CHANNEL_OPTIONS, INFER, SERVICE, Backend
from tidegate_proxy.catalog import Catalog
from tidegate_proxy.deadlines import deadline_ns
from tidegate_proxy.driver import TIMEOUT_EXPIRED, Driver, RequestFailed
from tidegate_proxy.envelope import NotSchedulable, open_envelope
from tidegate_proxy.wire import first_string

STREAMS = frozenset({SERVICE + "ModelStreamInfer"})
_RESERVED_METADATA = ("grpc-", ":", "user-agent", "content-type", "te")
Handler = Callable[[bytes, Any], Awaitable[bytes]]


class Front(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
    """Answers every method of Triton's service, parsing no more than scheduling needs."""

    def __init__(self, backends: Sequence[Backend], catalog: Catalog, driver: Driver) -> None:
        self._backends = backends
        self._catalog = catalog
        self._driver = driver
        self._infer_handler = grpc.unary_unary_rpc_method_handler(self._infer)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401 - grpc is untyped
        """The handler of a method, by its full name."""
        method = handler_call_details.method
        return self._infer_handler if method == INFER else self._forwarding(method)

    def _forwarding(self, method: str) -> Any:  # noqa: ANN401 - grpc is untyped
        if method in STREAMS:

            async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
                call = self._route("").stream(method)(requests, metadata=_forwarded(context))
                try:
                    async for response in call:
                        yield response
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details())

            return grpc.stream_stream_rpc_method_handler(stream)

        async def forward(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc is untyped
            return await self._forward(method, request, context)

        return grpc.unary_unary_rpc_method_handler(forward)

    async def _infer(self, request: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc is untyped
        arrival_ns = time.monotonic_ns()
        name = first_string(request)
        signature = self._catalog.signatures.get(name)
        if signature is None:
            return await self._forward(INFER, request, context)
        try:
            envelope = open_envelope(request, signature)
        except NotSchedulable:
            return await self._forward(INFER, request, context)
        due_ns = deadline_ns(arrival_ns, self._catalog.models[name], envelope.header, context.time_remaining())
        try:
            if due_ns <= arrival_ns:
                raise RequestFailed(grpc.StatusCode.UNAVAILABLE, TIMEOUT_EXPIRED)
            return await self._driver.infer(envelope, arrival_ns, due_ns)
        except RequestFailed as failure:
            await context.abort(failure.code, failure.details)
            raise AssertionError("abort always raises") from failure

    async def _forward(self, method: str, request: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc is untyped
        """Send a call on as it is, and its answer or its error back."""
        backend = self._route(first_string(request))
        remaining_s = context.time_remaining()
        try:
            answer: bytes = await backend.unary(method)(request, timeout=remaining_s, metadata=_forwarded(context))
        except grpc.aio.AioRpcError as error:
            await self._driver.lost(backend, error)  # if so, the next call goes to another
            await context.abort(error.code(), error.details())
            raise AssertionError("abort always raises") from error
        return answer

    def _route(self, model: str) -> Backend:
        """The first living Triton that has the model; failing that, the first living one; failing that, the first."""
        candidates = (*self._catalog.hosts.get(model, ()), *self._backends)
        return next((backend for backend in candidates if backend.alive), self._backends[0])


def _forwarded(context: Any) -> list[tuple[str, str | bytes]]:  # noqa: ANN401 - grpc is untyped
    """The client's metadata without what belongs to its own connection."""
    return [
        (key, value) for key, value in context.invocation_metadata() or () if not key.startswith(_RESERVED_METADATA)
    ]


async def start_front(front: Front, address: str) -> tuple[grpc.aio.Server, int]:
    """Listen; the server and its port. Raises OSError when the address cannot be bound."""
    server = grpc.aio.server(handlers=[front], options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)])
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: is the port taken?") from error
    await server.start()
    return server, port
