"""Protocol between frontends and shards: frames with a header of nine bytes and a payload.

The head is the frame's kind, the number of the call or exchange that it is about, and the size of what follows. A
frontend gives the numbers; 0 is about none.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any, Final

import msgspec

from tidegate_proxy.transport.interface import Metadata
from tidegate_proxy.tritons.backend import SERVICE_PREFIX

FRAME_HEADER: Final = Struct("<BII")
"""Kind, number, bytes of what it carries."""
_CALL: Final = Struct("<BdI")
"""Whether a message follows at once, seconds until the deadline (negative: none), bytes of the opening."""
_STATUS: Final = Struct("<IB")
PROTOCOL_VERSION: Final = 1
"""Protocol version; frontends and shards with different versions cannot communicate."""
STREAM_METHOD: Final = SERVICE_PREFIX + "ModelStreamInfer"
"""The method whose messages are passed on as they are asked for; of all others the first comes with the call."""
MAX_INLINE_BYTES: Final = 1 << 14
"""Messages up to so many bytes come with the frame that announces them: copying them once more costs nothing."""


class FrameType(IntEnum):
    """Type of a frame.

    A gRPC call begins with CALL and ends with ANSWER, END or GONE; an HTTP exchange with ASK and LAST or GONE.
    """

    # from a frontend
    LISTENS = 1
    """Clients come in."""
    CALL = 2
    """A call began; with its first message, if that is known and short."""
    MESSAGE = 3
    """Its next message."""
    CLOSED = 4
    """There is no further message."""
    TAKEN = 5
    """Flow control: the data sent last by SEND or PART was forwarded; the next may be sent."""
    GONE = 6
    """The client gave up."""
    ASK = 7
    """An HTTP request began: an `HttpOpening`."""
    BODY = 8
    """The next part of its body."""
    BODY_END = 9
    """The last part of its body."""
    COUNTS = 10
    """How the frontend's connections are: `FrontendCounts`."""
    RETIRED = 11
    """Clients had time to hear that they are to go elsewhere."""
    FIND = 12
    """Has the shard a model of this name, of which it has not said so? Answered with ANSWER: a byte, 0 or 1."""
    LEFT = 13
    """Nothing is asked any more of models that the shard was to part with: their names."""
    PROOF = 14
    """That the frontend knows the secret: a number, and the shard's answered."""
    # from a shard
    CHALLENGE = 17
    """A number that is to be answered, before anything else is said."""
    PROVEN = 18
    """That the shard knows the secret."""
    HELLO = 19
    """Calls may come: a `ShardHello`."""
    WANT = 20
    """The next message, or the next part of a body, may come."""
    RELEASE = 21
    """So many bytes of what came are not held any more: a number as of `size_of`."""
    SEND = 22
    """A message of a stream."""
    ANSWER = 23
    """The only message of a unary call, which ends well with it."""
    END = 24
    """A call's status: as of `status`."""
    START = 25
    """A response's status and headers, as of ASGI."""
    PART = 26
    """A part of a response's body; more is to come."""
    LAST = 27
    """The last part of a response's body."""
    RETIRE = 28
    """gRPC's clients are to be told to go elsewhere: a `RetireFrontend`."""
    RETIRE_HTTP = 29
    """The same for those over HTTP."""
    STOP = 30
    """The frontend is to end."""
    SERVES = 31
    """Models of this shard: a `ShardModels`."""
    AWAY = 32
    """The shard ends and comes back: so many milliseconds, as of `size_of`, what is asked of it is to wait."""
    RELOAD = 33
    """The configuration was taken up: so it is to be by the frontend."""


class ShardHello(msgspec.Struct):
    """First frame of a shard: its models and settings."""

    serves_http: bool
    """Whether clients come in over HTTP, too."""
    protocol: int = 0
    """`PROTOCOL_VERSION`, where it runs."""


class ShardModels(msgspec.Struct):
    """Models that a shard schedules."""

    models: frozenset[str]
    """Models that it is asked for."""
    leaving: frozenset[str]
    """Models that it answers for until another shard does, and then parts with."""


class FrontendCounts(msgspec.Struct):
    """Counts of a frontend, sent twice a second."""

    connections: dict[str, int]
    """How many are open, by protocol."""
    ended: list[tuple[str, str, int]]
    """Protocol, limit by its name in the configuration, and how often it ended or refused something since the last."""
    unread_bytes: int
    """Bytes of answers that clients have not taken."""


class RetireFrontend(msgspec.Struct):
    """How long clients are served that were told to go elsewhere."""

    cut_s: float
    """In so many seconds whatever is under way is cut off."""
    serve_s: float
    """For so many seconds new requests are taken."""


class CallOpening(msgspec.Struct, array_like=True):
    """Beginning of a gRPC call."""

    method: str
    peer: str
    metadata: tuple[tuple[str, Any], ...]
    """Values are text or bytes."""


class HttpOpening(msgspec.Struct, array_like=True):
    """Beginning of an HTTP exchange."""

    scope: dict[str, Any]
    """ASGI's, as far as it is text, numbers and bytes."""
    body: bytes | None
    """The whole body where it is short; None: it comes by and by."""
    is_page: bool = False
    """Whether it is for the shard's metrics page, not for the server of models."""


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
    """Return the payload of CALL; `message` None: it follows, or is not known yet."""
    opening = encode((method, peer, metadata))
    head = _CALL.pack(message is not None, -1.0 if remaining_s is None else remaining_s, len(opening))
    return head + opening + (message or b"")


class CallOpenings:
    """Reads what CALL carries. Most calls open as others did, so openings are kept and compared, not read."""

    _MOST: Final = 1000

    def __init__(self) -> None:
        self._known: dict[bytes, CallOpening] = {}

    def __len__(self) -> int:
        return len(self._known)

    def read(self, payload: bytes) -> tuple[CallOpening, float | None, bytes | None]:
        """The opening, seconds until the deadline, and the message if it came along."""
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
    """Return the payload of END; `reason`: one word for client programs."""
    word = reason.encode()
    return _STATUS.pack(code, len(word)) + word + details.encode("utf-8", "surrogatepass")


def status_of(payload: bytes) -> tuple[int, str, str]:
    """The number of a gRPC status, its details, and the word for the client's program."""
    code, length = _STATUS.unpack_from(payload)
    words = payload[_STATUS.size :]
    return code, words[length:].decode("utf-8", "surrogatepass"), words[:length].decode()


def size(amount: int) -> bytes:
    """Return the payload of RELEASE."""
    return amount.to_bytes(8, "little")


def size_of(payload: bytes) -> int:
    """The amount."""
    return int.from_bytes(payload, "little")
