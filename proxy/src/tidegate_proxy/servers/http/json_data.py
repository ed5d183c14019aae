"""Tensors as JSON values: from a request's `data` to raw contents, and from raw contents to a response's `data`."""

import re
from collections.abc import Iterable
from itertools import chain
from math import prod
from typing import Any, Final

import numpy as np

from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, split_elements
from tidegate_proxy.messages.request import NotSchedulable
from tidegate_proxy.servers.http.doubles import print_doubles

_INTEGERS: Final[dict[str, "np.dtype[Any]"]] = {
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
}
_FLOATS: Final[dict[str, "np.dtype[Any]"]] = {"FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
_LARGEST_MISMATCH: Final = 1 << 28
"""Size in bytes. Triton takes the memory for a shape before it counts the elements: some shapes end it."""
_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES: Final = {
    **{bytes((code,)): b"\\u%04X" % code for code in range(0x20)},
    b"\b": b"\\b", b"\t": b"\\t", b"\n": b"\\n", b"\f": b"\\f", b"\r": b"\\r", b'"': b'\\"', b"\\": b"\\\\",
}  # fmt: skip


TOO_DEEP: Final = "failed to parse the request JSON buffer: it is nested too deeply"


class Refused(Exception):
    """A client gets this error without Triton being asked; status and words are Triton's where it has them."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type["Refused"], tuple[int, str]]:
        return Refused, (self.status, str(self))


def read(datatype: str, shape: list[int], data: object) -> bytes:
    """The raw contents of a tensor given as JSON: nested in any way, as long as it has as many elements as its shape.

    As in Triton, integers that do not fit the datatype wrap around. Raises NotSchedulable for what Triton refuses, and
    Refused for what it would not survive.
    """
    if type(data) is not list:
        raise NotSchedulable("data is no array")
    count = prod(shape)
    if count == 0:
        return b""
    flat: list[object] = data
    kinds = set(map(type, flat))
    while list in kinds:
        if len(kinds) > 1:
            raise NotSchedulable("data mixes arrays and elements")
        flat = list(chain.from_iterable(flat))  # type: ignore[arg-type]  # all of them are lists
        kinds = set(map(type, flat))
    if datatype == "BYTES":
        return _read_strings(flat, kinds)
    if len(flat) != count:
        if count * ELEMENT_BYTES[datatype] > _LARGEST_MISMATCH:
            raise Refused(500, "Unable to parse 'data': Shape does not match true shape of 'data' field")
        raise NotSchedulable("data has not as many elements as its shape")
    return _read_numbers(datatype, flat, kinds)


def _read_strings(flat: list[object], kinds: set[type]) -> bytes:
    if kinds != {str}:
        raise NotSchedulable("an element of BYTES is no string")
    encoded = [str(text).encode() for text in flat]
    return b"".join(chain.from_iterable((len(text).to_bytes(4, "little"), text) for text in encoded))


def _read_numbers(datatype: str, flat: list[object], kinds: set[type]) -> bytes:
    try:
        if datatype == "BOOL" and kinds == {bool}:
            return bytes(flat)  # type: ignore[arg-type]  # bools are the bytes 0 and 1
        if datatype in _INTEGERS and kinds == {int}:
            kind = _INTEGERS[datatype]
            if kind.kind == "u" and min(flat) < 0:  # type: ignore[operator,type-var]  # all of them are integers
                raise NotSchedulable("a negative element of an unsigned datatype")
            return np.array(flat, np.uint64 if kind.kind == "u" else np.int64).astype(kind).tobytes()
        if datatype in _FLOATS and kinds <= {int, float}:
            with np.errstate(over="ignore"):  # beyond the range of FP32 lies infinity
                return np.array(flat, np.float64).astype(_FLOATS[datatype]).tobytes()
    except OverflowError as error:
        raise NotSchedulable("an element exceeds 64 bits") from error
    raise NotSchedulable(f"data is not of datatype {datatype}, or Triton takes that in binary form only")


def write(name: str, datatype: str, shape: Iterable[int], contents: bytes | memoryview) -> bytes:
    """A tensor's elements as the inside of a JSON array. Raises Refused where Triton gives an error instead."""
    if datatype in ("FP16", "BF16"):
        raise Refused(
            400, f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    count = prod(shape)
    if datatype != "BYTES" and len(contents) != count * ELEMENT_BYTES.get(datatype, 0):
        raise Refused(500, f"output tensor shape does not match size of output for '{name}'")
    if datatype == "BYTES":
        return b",".join(map(quote, _strings(name, count, contents)))
    if datatype == "BOOL":
        return b",".join([b"true" if byte else b"false" for byte in contents])
    if datatype in _FLOATS:
        with np.errstate(invalid="ignore"):  # some kinds of NaN complain of becoming another
            doubles = np.frombuffer(contents, _FLOATS[datatype]).astype(np.float64)
        return ",".join(print_doubles(doubles)).encode()
    return ",".join(map(str, np.frombuffer(contents, _INTEGERS[datatype]).tolist())).encode()


def quote(text: bytes) -> bytes:
    """A JSON string, escaped as Triton does: what is no UTF-8 goes through as it is."""
    return b'"' + _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text) + b'"'


def _strings(name: str, count: int, contents: bytes | memoryview) -> list[bytes]:
    try:
        ends = split_elements(contents, count)
    except ValueError as error:
        raise Refused(500, f"output tensor shape does not match size of output for '{name}'") from error
    return [bytes(contents[start + 4 : end]) for start, end in zip([0, *ends], ends, strict=False)]
