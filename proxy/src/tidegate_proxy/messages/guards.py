"""Guards for a Triton: inputs that crash it, or a model, and Tidegate's handling of them.

All were observed with Triton 2.51 (decision 84). Errors that a Triton survives are left to it.
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
"""Deepest nesting of JSON that is passed on: Triton parses recursively, and a million levels overflow its stack."""
MAX_TENSOR_BYTES: Final = (1 << 63) - 1
"""Largest tensor in bytes: Triton counts in 64 bits; a larger shape wraps around and crashes the model's process."""
STATUS_KEY: Final = "triton_grpc_error"
"""Metadata that asks a stream to end with the status of a failed response. Triton crashes on it."""
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
    """Return the metadata of a stream to a Triton, without keys that may crash it."""
    return [pair for pair in metadata if pair[0] != STATUS_KEY]


def asks_for_status(metadata: Metadata) -> bool:
    """Return whether a client wants its stream to end with the status of the first failed response."""
    return dict(metadata).get(STATUS_KEY) == "true"


def failed_answer(message: bytes) -> tuple[grpc.StatusCode, str] | None:
    """Return the status of a failed response in a stream, as Triton returns it to a client that asks for it.

    None for a response without failure, and for a request rejected before parsing: both are passed on unchanged.
    """
    response = service_pb2.ModelStreamInferResponse.FromString(message)
    words: str = response.error_message
    if not words or not response.infer_response.model_name:
        return None
    codes = (code for part, code in _CODE_OF_WORDS.items() if part in words)
    return next(codes, grpc.StatusCode.INTERNAL), words


def shape_problem(shapes: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Return why tensors of these names and shapes are not sent to a Triton, or "" if they may be."""
    for name, shape in shapes:
        if math.prod(max(1, abs(size)) for size in shape) * _LARGEST_ELEMENT > MAX_TENSOR_BYTES:
            return f"the shape of input '{name}' has more bytes than can be counted in 64 bits; send a smaller shape"
    return ""


class JsonDepth:
    """Nesting depth of JSON that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escapes = False
        """Whether the first byte of the next piece is escaped."""

    def exceeds(self, content: bytes) -> bool:
        """Add the next piece; return whether the nesting exceeds `MAX_JSON_DEPTH`."""
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
