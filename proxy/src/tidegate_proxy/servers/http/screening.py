"""Screening of HTTP requests forwarded to a Triton: rejects reserved shared memory, and input that would crash it.

Their JSON is not parsed: it may be large, and Triton may accept what this parser does not. The search is for names as
RapidJSON would read them, with each letter plain or escaped.
"""

import json
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from tidegate_proxy.base import reserved_names
from tidegate_proxy.messages.guards import JsonDepth, shape_problem
from tidegate_proxy.messages.request import NotSchedulable
from tidegate_proxy.servers.http.compression import COMPRESSED_ENCODINGS, BodyDecompression
from tidegate_proxy.servers.http.json_data import TOO_DEEP, RefusedRequest
from tidegate_proxy.servers.http.routes import Route

SHARED_MEMORY_CHANGES: Final = frozenset(
    f"/v2/{kind}sharedmemory/{what}" for kind in ("system", "cuda") for what in ("register", "unregister")
)
"""Routes that change the shared memory regions of a Triton."""
_BAD_REQUEST: Final = 400


def _escaped(word: str) -> str:
    return "".join(rf"(?:{re.escape(letter)}|\\u00(?i:{ord(letter):02x}))" for letter in word)


_USED: Final = re.compile(f'"{_escaped(reserved_names.REGION_PARAMETER)}"'.encode())
_RESERVED: Final = re.compile(f'"({"|".join(map(_escaped, reserved_names.RESERVED_PREFIXES))})'.encode())
_HINTS: Final = (rb"\u00", reserved_names.REGION_PARAMETER.encode())
"""Without one of these, which are quickly searched for, no region is named."""
_SHAPE: Final = re.compile(rf'"{_escaped("shape")}"\s*:\s*\[([-+.\w,\s]*)\]'.encode())
_HINTS_OF_SHAPES: Final = (rb"\u00", b'"shape"')
_LONGEST: Final = 1024
"""More than any of these has, each letter as an escape, and a shape of some forty sizes."""


class RequestScreen:
    """Screen for a request, piece by piece. Check the last piece before it is forwarded."""

    def __init__(
        self,
        *,
        is_inference: bool,
        refuses: bool,
        json_bytes: int | None,
        encodings: Iterable[bytes],
        limit: int | None,
    ) -> None:
        """Create the request screen.

        `is_inference`: look for regions and shapes. `refuses`: reject all tensors in shared memory.

        `json_bytes`: size of the JSON in the body; None: perhaps all. `encodings`: possible compressions. `limit`:
        largest decompressed size in bytes.
        """
        self._refuses = refuses
        self._is_inference = is_inference
        self._plain = _Search(json_bytes)
        self._inside = _Search(json_bytes)
        compressed = not COMPRESSED_ENCODINGS.isdisjoint(encodings)
        self._inflation = BodyDecompression(limit) if compressed else None
        self.takes_time = compressed
        """Whether to run the check in a thread."""

    def look(self, piece: bytes) -> None:
        """Check the next piece. Raises Refused if the request must not be forwarded, TooLarge."""
        self._judge(self._plain, piece)
        try:
            for content in self._inflation.pieces(piece) if self._inflation else ():
                self._judge(self._inside, content)
        except NotSchedulable:
            self._inflation = None  # a Triton reads no further, either

    def _judge(self, search: "_Search", piece: bytes) -> None:
        search.go_on(piece)
        if search.is_too_deep:
            raise RefusedRequest(_BAD_REQUEST, TOO_DEEP)
        if not self._is_inference:
            return
        if search.shape_problem:
            raise RefusedRequest(_BAD_REQUEST, search.shape_problem)
        if search.used and (search.reserved or self._refuses):
            raise RefusedRequest(_BAD_REQUEST, reserved_names.why_not_used(search.reserved, refuses=self._refuses))


class _Search:
    """For the parameter that names a region, and for a name behind it that is reserved."""

    def __init__(self, limit: int | None) -> None:
        """`limit`: how far to search, in bytes; None: to the end."""
        self.used = False
        self.reserved = ""
        self.is_too_deep = False
        self.shape_problem = ""
        self._depth = JsonDepth()
        self._left = limit
        self._end = b""
        """The end of what was searched: what is searched for may begin there."""

    def go_on(self, piece: bytes) -> None:
        """Search the next piece of the body."""
        if self._left is not None:
            piece = piece[: self._left]
            self._left -= len(piece)
        if not piece:
            return
        self.is_too_deep = self.is_too_deep or self._depth.exceeds(piece)
        text = self._end + piece if self._end else piece
        self._end = text[-_LONGEST:]
        if not self.shape_problem and any(hint in text for hint in _HINTS_OF_SHAPES):
            self.shape_problem = _problem_of_shapes(text)
        if not self.used:
            self.used = any(hint in text for hint in _HINTS) and _USED.search(text) is not None
        # The name stands behind the parameter that it is the value of: what is before need not be searched again.
        if self.used and not self.reserved and (found := _RESERVED.search(text)):
            self.reserved = json.loads(b'"%b"' % found[1])


def _problem_of_shapes(text: bytes) -> str:
    shapes = ([_size(size) for size in found[1].split(b",")] for found in _SHAPE.finditer(text))
    return shape_problem(("", shape) for shape in shapes)


def _size(number: bytes) -> int:
    """A size in a shape; 1 for what is no whole number, which Triton refuses."""
    try:
        return int(number)
    except ValueError:
        return 1


def why_not_changed(route: Route, body: bytes) -> str:
    """Return why a request may not change the regions of a Triton, or "" if it may."""
    for name in (route.region, unquote(route.region)):
        if route.pattern.endswith("/unregister"):
            words = reserved_names.why_not_unregistered(name)
        else:
            words = reserved_names.why_not_registered(name) or _why_no_key(name, body)
        if words:
            return words
    return ""


def _why_no_key(name: str, body: bytes) -> str:
    keys: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> None:
        keys.extend(value for key, value in pairs if key == "key" and isinstance(value, str))

    try:
        json.loads(body.decode("latin1"), object_pairs_hook=collect, strict=False)
    except (ValueError, RecursionError):
        # A Triton may read what is no JSON here.
        found = re.search("|".join(map(_escaped, reserved_names.RESERVED_PREFIXES)).encode(), body)
        return reserved_names.why_not_registered(name, json.loads(b'"%b"' % found[0])) if found else ""
    return next((words for key in keys if (words := reserved_names.why_not_registered(name, key))), "")
