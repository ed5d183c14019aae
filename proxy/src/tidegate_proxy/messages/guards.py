"""Guards before a Triton: inputs that end it, or a model of it, and what Tidegate does instead.

All were seen with Triton 2.51 (decision 84). Errors that a Triton survives are its own to word.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from tidegate_proxy.transport import Metadata

MAX_JSON_DEPTH: Final = 1000
"""Triton parses JSON by recursion: a million levels overflow its stack. No call of its API needs more than a few."""
MAX_TENSOR_BYTES: Final = (1 << 63) - 1
"""Triton counts bytes in 64 bits: a shape beyond wraps around, fits no bytes at all, and ends the model's process."""
STATUS_KEY: Final = "triton_grpc_error"
"""Metadata with which a stream asks that a failed answer end it with a status. Triton ends itself doing so."""
_LARGEST_ELEMENT: Final = 8
_CODE_OF_WORDS: Final[Mapping[str, grpc.StatusCode]] = {
    "Request timeout expired": grpc.StatusCode.UNAVAILABLE,
    "Exceeds maximum queue size": grpc.StatusCode.UNAVAILABLE,
    "Server is stopping": grpc.StatusCode.UNAVAILABLE,
    "Request for unknown model": grpc.StatusCode.NOT_FOUND,
    "incomplete string": grpc.StatusCode.INVALID_ARGUMENT,
    "unexpected number of string elements": grpc.StatusCode.INVALID_ARGUMENT,
    "unexpected shape for input": grpc.StatusCode.INVALID_ARGUMENT,
}
"""An error in a stream has words only. These have another status than INTERNAL, which backends give by default."""
_STEP: Final = 1 << 18
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)


def for_streams(metadata: Metadata) -> Metadata:
    """The metadata of a stream to a Triton, without what may end it."""
    return [pair for pair in metadata if pair[0] != STATUS_KEY]


def asks_for_status(metadata: Metadata) -> bool:
    """Whether a client wants its stream to end with the status of the first failed answer."""
    return dict(metadata).get(STATUS_KEY) == "true"


def failed_answer(message: bytes) -> tuple[grpc.StatusCode, str] | None:
    """The status of a failed answer in a stream, as Triton gives it to a client that asks for it.

    None for an answer that did not fail, and for a request that was refused before it was one: both leave as they are.
    """
    response = service_pb2.ModelStreamInferResponse.FromString(message)
    words: str = response.error_message
    if not words or not response.infer_response.model_name:
        return None
    codes = (code for part, code in _CODE_OF_WORDS.items() if part in words)
    return next(codes, grpc.StatusCode.INTERNAL), words


def shape_problem(shapes: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Why no Triton is sent tensors of these names and shapes, in words; "": it may be."""
    for name, shape in shapes:
        if math.prod(max(1, abs(size)) for size in shape) * _LARGEST_ELEMENT > MAX_TENSOR_BYTES:
            return f"the shape of input '{name}' has more bytes than can be counted in 64 bits; send a smaller shape"
    return ""


class JsonDepth:
    """Nesting depth of JSON that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escapes = False
        """Whether the first byte of the next piece is escaped."""

    def exceeds(self, content: bytes) -> bool:
        """Take in the next piece; whether it is nested deeper than `MAX_JSON_DEPTH` somewhere."""
        return any(self._go_on(content[start : start + _STEP]) for start in range(0, len(content), _STEP))

    def _go_on(self, piece: bytes) -> bool:
        if self._escapes:
            piece, self._escapes = piece[1:], False
        if b"\\" in piece:
            piece = _ESCAPE.sub(b"", piece)
            self._escapes = piece.endswith(b"\\")
        if not piece:
            return False
        letters = np.frombuffer(piece, np.uint8)
        in_string = (np.cumsum(letters == ord('"')) + self._in_string) % 2 == 1
        opens = (letters == ord("[")) | (letters == ord("{"))
        closes = (letters == ord("]")) | (letters == ord("}"))
        depths = np.cumsum(np.where(in_string, 0, opens.astype(np.int64) - closes)) + self._depth
        self._in_string = bool(in_string[-1])
        self._depth = int(depths[-1])
        return int(depths.max()) > MAX_JSON_DEPTH
