"""Coroutines for gRPC calls to a server."""

import asyncio
from typing import Any

import grpc

from tidegate_proxy.transport.http2 import Channel, PendingStream
from tidegate_proxy.transport.interface import Metadata


class CallFailed(Exception):
    """Error: a call to a server has ended with a status that is not OK."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


async def ask(
    channel: Channel,
    method: str,
    message: bytes,
    metadata: Metadata = (),
    timeout_s: float | None = None,
    *,
    among: set[Any] | None = None,
) -> bytes:
    """Return the response of a server. Raises CallFailed. Cancelling the task cancels the call.

    `among`: set in which the call is registered while it is in flight.
    """
    over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def ended(answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        if over.done():
            return
        if answer is None:
            over.set_exception(CallFailed(code, details))
        else:
            over.set_result(answer)

    call = channel.unary(method, message, ended, metadata, timeout_s)
    if among is not None:
        among.add(call)
    try:
        return await over
    except asyncio.CancelledError:
        call.cancel()
        raise
    finally:
        if among is not None:
            among.discard(call)


class AsyncStream:
    """Stream to a server, read by one task and written by one."""

    def __init__(self, channel: Channel, method: str, metadata: Metadata = (), timeout_s: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._reading: asyncio.Future[bytes | None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._call: PendingStream = channel.stream(method, self._ended, metadata, timeout_s)

    async def write(self, message: bytes) -> None:
        """Send a message; return when the next one may be sent, or the stream has ended."""
        if self._status:
            return
        self._writing = self._loop.create_future()
        self._call.send(message, self._written)
        await self._writing

    def half_close(self) -> None:
        """Signal that there are no more messages."""
        self._call.half_close()

    async def read(self) -> bytes | None:
        """Return the next message, or None when the server has ended the stream with OK. Raises CallFailed."""
        if self._status is None:
            self._reading = self._loop.create_future()
            self._call.receive(self._read)
            return await self._reading
        self._raise_unless_ok()
        return None

    def cancel(self) -> None:
        """End the stream with CANCELLED, unless it has ended."""
        self._call.cancel()

    def _read(self, message: bytes) -> None:
        if self._reading and not self._reading.done():
            self._reading.set_result(message)

    def _written(self, _event: object) -> None:
        if self._writing and not self._writing.done():
            self._writing.set_result(None)

    def _ended(self, code: grpc.StatusCode, details: str) -> None:
        self._status = code, details
        self._written(None)
        if self._reading and not self._reading.done():
            if code is grpc.StatusCode.OK:
                self._reading.set_result(None)
            else:
                self._reading.set_exception(CallFailed(code, details))

    def _raise_unless_ok(self) -> None:
        if self._status and self._status[0] is not grpc.StatusCode.OK:
            raise CallFailed(*self._status)
