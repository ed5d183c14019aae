"""Interface of a gRPC server and its calls, whether this process has the clients or a frontend does.

Everything is for one thread, that of the event loop in which servers are made: methods are called there,
and callbacks run there. None of `then` is called before the method returns that it was given to.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from tidegate_proxy.configuration.config import ServerTls

Metadata = Sequence[tuple[str, str | bytes]]
Answered = Callable[[bytes | None, grpc.StatusCode, str], None]
"""Called with the answer, the status and its details; the answer is None unless the status is OK."""

Ended = Callable[[grpc.StatusCode, str], None]
"""Called with the status and its details."""


class RpcCall(Protocol):
    """One RPC of a client."""

    method: str
    """Full name, such as `/inference.GRPCInferenceService/ModelInfer`."""
    gone: bool
    """Whether the client gave up, its connection broke or its deadline passed before the call was ended."""
    owner: str
    """Whose call it is: what it holds counts as theirs. Set it before the first `receive`."""

    @property
    def metadata(self) -> Metadata:
        """The client's metadata, keys in lower case."""
        ...

    def add_disconnect_callback(self, then: Callable[[], None]) -> None:
        """Have `then` called once the client is gone, at once where it is; not where the call has ended."""
        ...

    def peer(self) -> str:
        """The client's address, as gRPC writes it."""
        ...

    def remaining_s(self) -> float | None:
        """Time until the client's deadline, at least 0; None when it has none."""
        ...

    def receive(self, then: Callable[[bytes | None], None], within_s: float | None = None) -> None:
        """Have `then` called with the next message, or with None when the client sends no more. One at a time.

        The call ends instead where too much is in flight, or where the message is not whole in time.
        """
        ...

    def release(self, size: int) -> None:
        """So many bytes of what was received are not held any more."""
        ...

    def answer(self, message: bytes) -> None:
        """End a unary call well."""
        ...

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send one message of a stream; `then` is called, with something of no meaning, when the next may be sent."""
        ...

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "", reason: str = "") -> None:
        """End a call without a further message. Only the first end of a call counts.

        `reason`: why Tidegate refused it, in one word of ASCII, which is sent as trailing metadata; empty: none is.
        """
        ...


class RpcServer(Protocol):
    """Listens, and gives every call to the function that it was made with."""

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        ...

    async def listen(self, address: str, tls: ServerTls | None = None) -> int:
        """Bind HOST:PORT and serve; the port. Raises OSError when it cannot be bound, and TlsError."""
        ...

    async def retire(self, within_s: float) -> None:
        """Tell clients to go elsewhere; return when they had time to hear it. Whoever stays, or comes, is served."""
        ...

    async def stop(self, grace_s: float) -> bool:
        """Take no more calls, let those under way end, cut off what has not ended then; whether all had."""
        ...
