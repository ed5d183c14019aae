"""Protocol between frontends and shards: frames of a nine-byte head and a payload.

The head has the frame's type, the number of its call or exchange, and the size of the payload. Frontends assign the
numbers; 0 stands for none.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any, Final

import msgspec

from tidegate_proxy.transport.interface import Metadata
from tidegate_proxy.tritons.backend import SERVICE_PREFIX

FRAME_HEADER: Final = Struct("<BII")
"""Frame head: type, number, bytes of the payload."""
_CALL: Final = Struct("<BdI")
"""Whether a message follows at once, seconds until the deadline (negative: none), bytes of the opening."""
_STATUS: Final = Struct("<IB")
PROTOCOL_VERSION: Final = 1
"""Protocol version; frontends and shards with different versions cannot communicate."""
STREAM_METHOD: Final = SERVICE_PREFIX + "ModelStreamInfer"
"""Method whose messages are sent on demand; of all others the first message is sent with the call."""
MAX_INLINE_BYTES: Final = 1 << 14
"""Size in bytes up to which a message is sent within the frame that announces it, where copying is cheap."""


class FrameType(IntEnum):
    """Type of a frame.

    A gRPC call begins with CALL and ends with ANSWER, END or GONE; an HTTP exchange with ASK and LAST or GONE.
    """

    # from a frontend
    LISTENS = 1
    """The frontend accepts clients."""
    CALL = 2
    """A call began; with its first message, if that is known and short."""
    MESSAGE = 3
    """Next message of a call."""
    CLOSED = 4
    """There is no further message of a call."""
    TAKEN = 5
    """Flow control: the data sent last by SEND or PART was forwarded; the next may be sent."""
    GONE = 6
    """The client cancelled."""
    ASK = 7
    """An HTTP request began: an `HttpOpening`."""
    BODY = 8
    """Next part of the request's body."""
    BODY_END = 9
    """Last part of the request's body."""
    COUNTS = 10
    """Connection counts of the frontend: `FrontendCounts`."""
    RETIRED = 11
    """Clients have had time to learn that they should reconnect."""
    FIND = 12
    """Query whether the shard has an unannounced model of this name. Answered with ANSWER: a byte, 0 or 1."""
    LEFT = 13
    """No more requests will come for these models, which the shard was to release."""
    PROOF = 14
    """Proof that the frontend knows the secret: a number, and the answer to the shard's."""
    # from a shard
    CHALLENGE = 17
    """Challenge: a number that must be answered before anything else."""
    PROVEN = 18
    """Proof that the shard knows the secret."""
    HELLO = 19
    """Calls may begin: a `ShardHello`."""
    WANT = 20
    """The next message, or the next part of a body, is wanted."""
    RELEASE = 21
    """Number of received bytes that are no longer held, as written by `size`."""
    SEND = 22
    """Message of a stream."""
    ANSWER = 23
    """Only message of a unary call, which ends it with OK."""
    END = 24
    """Status that ends a call, as written by `status`."""
    START = 25
    """Status and headers of a response, as in ASGI."""
    PART = 26
    """Part of a response's body; more will follow."""
    LAST = 27
    """Last part of a response's body."""
    RETIRE = 28
    """gRPC clients should reconnect elsewhere: a `RetireFrontend`."""
    RETIRE_HTTP = 29
    """HTTP clients should reconnect elsewhere: a `RetireFrontend`."""
    STOP = 30
    """The frontend should exit."""
    SERVES = 31
    """Models of this shard: a `ShardModels`."""
    AWAY = 32
    """The shard restarts: hold requests for it for so long, milliseconds as written by `size`."""
    RELOAD = 33
    """The configuration was reloaded: the frontend should do so too."""


class ShardHello(msgspec.Struct):
    """First frame of a shard: its models and settings."""

    serves_http: bool
    """Whether clients are served over HTTP too."""
    protocol: int = 0
    """Protocol version of the shard, see `PROTOCOL_VERSION`."""


class ShardModels(msgspec.Struct):
    """Models that a shard schedules."""

    models: frozenset[str]
    """Models to which it receives requests."""
    leaving: frozenset[str]
    """Models that it serves until another shard does, and then releases."""


class FrontendCounts(msgspec.Struct):
    """Counts of a frontend, sent twice a second."""

    connections: dict[str, int]
    """Number of open connections, by protocol."""
    ended: list[tuple[str, str, int]]
    """Protocol, limit by its name in the configuration, and how often it was applied since the last report."""
    unread_bytes: int
    """Bytes of responses that clients have not read."""


class RetireFrontend(msgspec.Struct):
    """Command to a frontend to end: how long it serves the clients that it asks to reconnect."""

    cut_s: float
    """Seconds after which all calls in flight are cut off."""
    serve_s: float
    """Seconds for which new requests are accepted."""


class CallOpening(msgspec.Struct, array_like=True):
    """Beginning of a gRPC call."""

    method: str
    peer: str
    metadata: tuple[tuple[str, Any], ...]
    """Metadata; values are text or bytes."""


class HttpOpening(msgspec.Struct, array_like=True):
    """Beginning of an HTTP exchange."""

    scope: dict[str, Any]
    """ASGI scope, reduced to text, numbers and bytes."""
    body: bytes | None
    """Whole body if it is short; None: it follows in parts."""
    is_page: bool = False
    """Whether the request is for the shard's metrics endpoint, not for the inference server."""


class ResponseStart(msgspec.Struct, array_like=True):
    """Status and headers of a response."""

    status: int
    headers: list[tuple[bytes, bytes]]


encode: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode
hello_of: Final = msgspec.msgpack.Decoder(ShardHello).decode
counts_of: Final = msgspec.msgpack.Decoder(FrontendCounts).decode
serves_of: Final = msgspec.msgpack.Decoder(ShardModels).decode
names_of: Final = msgspec.msgpack.Decoder(list[str]).decode
retire_of: Final = msgspec.msgpack.Decoder(RetireFrontend).decode
ask_of: Final = msgspec.msgpack.Decoder(HttpOpening).decode
start_of: Final = msgspec.msgpack.Decoder(ResponseStart).decode
_opening_of: Final = msgspec.msgpack.Decoder(CallOpening).decode


def call(method: str, peer: str, metadata: Metadata, remaining_s: float | None, message: bytes | None) -> bytes:
    """Return the payload of CALL; `message` None: it follows, or is not known yet.

    `peer`: address of the client; `remaining_s`: seconds until its deadline, None: none.
    """
    opening = encode((method, peer, metadata))
    head = _CALL.pack(message is not None, -1.0 if remaining_s is None else remaining_s, len(opening))
    return head + opening + (message or b"")


class CallOpenings:
    """Decoder of CALL. Most openings equal earlier ones, so they are cached and compared instead of parsed."""

    _MOST: Final = 1000

    def __init__(self) -> None:
        self._known: dict[bytes, CallOpening] = {}

    def __len__(self) -> int:
        return len(self._known)

    def read(self, payload: bytes) -> tuple[CallOpening, float | None, bytes | None]:
        """Return the opening, seconds until the deadline, and the message if it was included."""
        has_message, remaining_s, size = _CALL.unpack_from(payload)
        begin, end = _CALL.size, _CALL.size + size
        written = payload[begin:end]
        opening = self._known.get(written)
        if opening is None:
            if len(self._known) >= self._MOST:
                self._known.clear()
            opening = self._known[written] = _opening_of(written)
        return opening, None if remaining_s < 0 else remaining_s, payload[end:] if has_message else None


def status(code: int, details: str, reason: str = "") -> bytes:
    """Return the payload of END; `reason`: one word for client programs.

    `code`: number of the gRPC status.
    """
    word = reason.encode()
    return _STATUS.pack(code, len(word)) + word + details.encode("utf-8", "surrogatepass")


def status_of(payload: bytes) -> tuple[int, str, str]:
    """Decode END: number of the gRPC status, details, and `tidegate-reason`."""
    code, length = _STATUS.unpack_from(payload)
    words = payload[_STATUS.size :]
    return code, words[length:].decode("utf-8", "surrogatepass"), words[:length].decode()


def size(amount: int) -> bytes:
    """Return the payload of RELEASE."""
    return amount.to_bytes(8, "little")


def size_of(payload: bytes) -> int:
    """Decode a number."""
    return int.from_bytes(payload, "little")
