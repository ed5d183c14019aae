"""Interface of a gRPC server and its calls, whether this process has the clients or a frontend does.

Use everything in one thread, that of the event loop in which servers are created: methods are called there, and
callbacks run there. No `then` is called before the method returns that it was given to.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from tidegate_proxy.configuration.config import ServerTls

Metadata = Sequence[tuple[str, str | bytes]]
Answered = Callable[[bytes | None, grpc.StatusCode, str], None]
"""Callback with the response, the status and its details; the response is None unless the status is OK."""

Ended = Callable[[grpc.StatusCode, str], None]
"""Callback with the status and its details."""


class RpcCall(Protocol):
    """gRPC call of a client."""

    method: str
    """Full method name, such as `/inference.GRPCInferenceService/ModelInfer`."""
    gone: bool
    """Whether the client cancelled, its connection broke or its deadline passed before the call ended."""
    owner: str
    """Client that the call belongs to, whose limits apply. Set it before the first `receive`."""

    @property
    def metadata(self) -> Metadata:
        """Metadata of the client, keys in lower case."""
        ...

    def add_disconnect_callback(self, then: Callable[[], None]) -> None:
        """Call `then` once the client is gone, at once if it is; never after the call has ended."""
        ...

    def peer(self) -> str:
        """Address of the client, as gRPC writes it."""
        ...

    def remaining_s(self) -> float | None:
        """Return the seconds until the client's deadline, at least 0; None without a deadline."""
        ...

    def receive(self, then: Callable[[bytes | None], None], within_s: float | None = None) -> None:
        """Call `then` with the next message, or with None when the client sends no more. One at a time.

        The call ends instead if a limit of bytes in flight is reached, or if the message is incomplete after
        `within_s`.
        """
        ...

    def release(self, size: int) -> None:
        """Release `size` bytes of what was received."""
        ...

    def answer(self, message: bytes) -> None:
        """End a unary call with its response."""
        ...

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send one message of a stream; `then` is called, with an unused argument, when the next may be sent."""
        ...

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "", reason: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts.

        `reason`: the `tidegate-reason`, sent as trailing metadata; "" for none.
        """
        ...


class RpcServer(Protocol):
    """gRPC server that passes every call to the function it was created with."""

    @property
    def open_calls(self) -> int:
        """Number of calls that have not ended."""
        ...

    async def listen(self, address: str, tls: ServerTls | None = None) -> int:
        """Bind HOST:PORT and serve; return the port. Raises OSError if it cannot be bound, and TlsError."""
        ...

    async def retire(self, within_s: float) -> None:
        """Tell clients to reconnect; return when they had time to receive that.

        Those that stay, or come, are served.
        """
        ...

    async def stop(self, grace_s: float) -> bool:
        """Accept no more calls, cut off those in flight after `grace_s`; return whether all had ended before."""
        ...
