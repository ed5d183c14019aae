"""Interface of a gRPC server, whether this process has the clients or a frontend does.

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
