"""Tensors as JSON: from a request's `data` to raw contents, and from raw contents to a response's `data`."""

import re
from collections.abc import Iterable
from itertools import chain
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, split_elements
from tidegate_proxy.messages.request import NotSchedulable

_Words = npt.NDArray[np.uint64]
_BLOCK: Final = 4096
_ROUNDED_STEPS: Final = 9
_LOG10_OF_2: Final = 0.30102999566398114
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
_TOP: Final = np.uint64(63)
_POWERS_OF_10: Final = np.array([10**i for i in range(20)], np.uint64)
_STEPS: Final = np.arange(1, 19)


def _cached_powers() -> tuple[_Words, npt.NDArray[np.int64]]:
    """10^-348, 10^-340 ... 10^340 as 64-bit significands, rounded to the nearest, and binary exponents."""
    significands, exponents = [], []
    for power in range(-348, 341, 8):
        numerator, denominator = (10**power, 1) if power >= 0 else (1, 10**-power)
        exponent = numerator.bit_length() - denominator.bit_length() - 64
        while True:
            top, bottom = (
                (numerator, denominator << exponent) if exponent >= 0 else (numerator << -exponent, denominator)
            )
            significand = (2 * top + bottom) // (2 * bottom)
            if significand < 1 << 64:
                break
            exponent += 1
        significands.append(significand)
        exponents.append(exponent)
    return np.array(significands, np.uint64), np.array(exponents, np.int64)


_POWER_SIGNIFICANDS, _POWER_EXPONENTS = _cached_powers()


def print_doubles(values: npt.NDArray[np.float64]) -> list[str]:
    """Return the JSON text of each double of a flat array; NaN and infinities as in RapidJSON's extension.

    Triton writes JSON with RapidJSON, which uses Grisu2: numbers always read back as the same double, but a quarter of
    them differ from Python's in the last digit. To keep responses comparable, the same is done here, for whole arrays
    at a time. Source: F. Loitsch, "Printing Floating-Point Numbers Quickly and Accurately with Integers" (PLDI 2010),
    with RapidJSON's choices: no rounding of the last digit after the ninth fractional step, and its layout of the
    decimal point.
    """
    texts: list[str] = []
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        plain = np.isfinite(block) & (block != 0)
        if plain.all():
            texts += _print_plain(block)
            continue
        printed = iter(_print_plain(block[plain]))
        texts += [
            next(printed) if is_plain else _print_special(value)
            for is_plain, value in zip(plain.tolist(), block.tolist(), strict=True)
        ]
    return texts


def _print_special(value: float) -> str:
    if value == 0:
        return str(value)
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - NaN is not itself


def _print_plain(values: npt.NDArray[np.float64]) -> list[str]:
    if not len(values):
        return []
    digits, exponents = _grisu2(np.abs(values))
    return [
        "-" + _layout(str(number), exponent) if negative else _layout(str(number), exponent)
        for number, exponent, negative in zip(
            digits.tolist(), exponents.tolist(), np.signbit(values).tolist(), strict=True
        )
    ]


def _layout(digits: str, exponent: int) -> str:
    """Place the decimal point of digits * 10^exponent."""
    length = len(digits)
    point = length + exponent
    if 0 < point <= 21:
        if exponent >= 0:
            return digits + "0" * exponent + ".0"
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    if length == 1:
        return f"{digits}e{point - 1}"
    return f"{digits[0]}.{digits[1:]}e{point - 1}"


def _grisu2(values: npt.NDArray[np.float64]) -> tuple[_Words, npt.NDArray[np.int64]]:
    """Decimal digits, as integers, and decimal exponents of positive finite doubles.

    `w` is the number itself, `plus` the upper bound of what reads back as it, both scaled by a power of ten so that
    they have at most ten decimal digits before the binary point, and `shift` bits behind it.
    """
    f, e = _decompose(values)
    lower, upper, e_plus, w = _boundaries(f, e)
    estimate = (-61 - e_plus) * _LOG10_OF_2 + 347
    index = (np.ceil(estimate).astype(np.int64) >> 3) + 1
    power, e_power = _POWER_SIGNIFICANDS[index], _POWER_EXPONENTS[index]
    w = _multiply(w, power)
    plus = _multiply(upper, power) - np.uint64(1)
    delta = plus - (_multiply(lower, power) + np.uint64(1))
    shift = (-(e_plus + e_power + 64)).astype(np.uint64)
    return _generate(w, plus, delta, shift, 348 - 8 * index)


def _decompose(values: npt.NDArray[np.float64]) -> tuple[_Words, npt.NDArray[np.int64]]:
    bits = values.view(np.uint64)
    biased = (bits >> np.uint64(52)).astype(np.int64)
    f = bits & np.uint64((1 << 52) - 1)
    normal = biased > 0
    f[normal] |= np.uint64(1 << 52)
    return f, np.maximum(biased, 1) - 1075


def _boundaries(f: _Words, e: npt.NDArray[np.int64]) -> tuple[_Words, _Words, npt.NDArray[np.int64], _Words]:
    """Lower and upper bound of what reads back as f * 2^e, both with the upper one's exponent; f normalized to it."""
    upper = (f << np.uint64(1)) + np.uint64(1)
    shift = _leading_zeros(upper).astype(np.uint64)
    e_plus = e - 1 - shift.astype(np.int64)
    closer = (f == np.uint64(1 << 52)).astype(np.uint64)  # below a power of two doubles lie twice as close
    lower = ((f << (np.uint64(1) + closer)) - np.uint64(1)) << (shift - closer)
    return lower, upper << shift, e_plus, f << (shift + np.uint64(1))


def _leading_zeros(words: _Words) -> npt.NDArray[np.int64]:
    high, low = words >> _HALF, words & _LOW  # each exact as a double, whose exponent is its length
    length_high = np.frexp(high.astype(np.float64))[1]
    length_low = np.frexp(low.astype(np.float64))[1]
    return np.asarray(64 - np.where(high > 0, length_high + 32, length_low), np.int64)


def _multiply(a: _Words, b: _Words) -> _Words:
    """The upper half of the 128-bit product, rounded."""
    high, low = _product(a, b)
    return high + (low >> _TOP)


def _product(a: _Words, b: Any) -> tuple[_Words, _Words]:  # noqa: ANN401 - words, or one
    a_high, a_low, b_high, b_low = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    low, middle, other = a_low * b_low, a_high * b_low, a_low * b_high
    carry = (low >> _HALF) + (middle & _LOW) + (other & _LOW)
    high = a_high * b_high + (middle >> _HALF) + (other >> _HALF) + (carry >> _HALF)
    return high, (carry << _HALF) | (low & _LOW)


def _generate(
    w: _Words, plus: _Words, delta: _Words, shift: _Words, exponent: npt.NDArray[np.int64]
) -> tuple[_Words, npt.NDArray[np.int64]]:
    """Generate the fewest digits within `delta` of `plus`, then move the last digit towards `w`."""
    one = np.uint64(1) << shift
    integer, fraction = plus >> shift, plus & (one - np.uint64(1))
    # Cut within the integer: kappa digits are left out, as many as possible. Column 0 leaves out nine of at most ten.
    tens = _POWERS_OF_10[9::-1]
    left_out = ((integer[:, None] % tens) << shift[:, None]) + fraction[:, None]
    enough = (left_out <= delta[:, None]) & (tens <= integer[:, None])
    # Otherwise behind the point, after as many steps as it takes. Products wrap, which leaves the fraction exact.
    scaled = _POWERS_OF_10[_STEPS]
    left_behind = (fraction[:, None] * scaled) & (one - np.uint64(1))[:, None]
    within = left_behind < delta[:, None] * scaled
    in_integer = enough.any(axis=1)
    row = np.arange(len(w))
    kappa = 9 - enough.argmax(axis=1)
    step = within.argmax(axis=1)
    steps = _STEPS[step]
    high, low = _product(fraction, scaled[step])
    behind_point = (high << (np.uint64(64) - shift)) | (low >> shift)
    digits = np.where(in_integer, integer // _POWERS_OF_10[kappa], integer * scaled[step] + behind_point)
    rest = np.where(in_integer, left_out[row, 9 - kappa], left_behind[row, step])
    unit = np.where(in_integer, _POWERS_OF_10[kappa] << shift, one)
    distance = plus - w
    rounded = np.where(steps < _ROUNDED_STEPS, distance * scaled[step], np.uint64(0))
    digits = _round(
        digits,
        rest,
        np.where(in_integer, delta, delta * scaled[step]),
        unit,
        np.where(in_integer, distance, rounded),
    )
    return digits, exponent + np.where(in_integer, kappa, -steps)


def _round(digits: _Words, rest: _Words, delta: _Words, unit: _Words, distance: _Words) -> _Words:
    """Lower the last digit while that brings the number closer to the one wanted and keeps it within the bounds."""
    while True:
        lower = rest + unit
        down = (rest < distance) & (delta - rest >= unit) & ((lower < distance) | (distance - rest > lower - distance))
        if not down.any():
            return digits
        digits = digits - down
        rest = np.where(down, lower, rest)


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


class RefusedRequest(Exception):
    """Error: the request is rejected without Triton; status and message are Triton's where it has them."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type["RefusedRequest"], tuple[int, str]]:
        return RefusedRequest, (self.status, str(self))


def read(datatype: str, shape: list[int], data: object) -> bytes:
    """Return the raw contents of a tensor given as JSON, nested in any way, with as many elements as its shape.

    As in Triton, integers that do not fit the datatype wrap around. Raises NotSchedulable for input that Triton
    rejects, and Refused for input that would crash it. `data`: the parsed JSON.
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
            raise RefusedRequest(500, "Unable to parse 'data': Shape does not match true shape of 'data' field")
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
    """Return a tensor's elements as the inside of a JSON array. Raises Refused where Triton returns an error.

    `name`, `datatype`, `shape`: of the tensor; `contents`: its raw bytes.
    """
    if datatype in ("FP16", "BF16"):
        raise RefusedRequest(
            400, f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    count = prod(shape)
    if datatype != "BYTES" and len(contents) != count * ELEMENT_BYTES.get(datatype, 0):
        raise RefusedRequest(500, f"output tensor shape does not match size of output for '{name}'")
    if datatype == "BYTES":
        return b",".join(map(quote, _strings(name, count, contents)))
    if datatype == "BOOL":
        return b",".join([b"true" if byte else b"false" for byte in contents])
    if datatype in _FLOATS:
        with np.errstate(invalid="ignore"):  # some kinds of NaN complain of becoming another
            doubles = np.frombuffer(contents, _FLOATS[datatype]).astype(np.float64)
        return ",".join(print_doubles(doubles)).encode()
    integers = np.frombuffer(contents, _INTEGERS[datatype])
    # In blocks, between which a thread lets others run.
    blocks = [",".join(map(str, integers[at : at + _BLOCK].tolist())) for at in range(0, len(integers), _BLOCK)]
    return ",".join(blocks).encode()


def quote(text: bytes) -> bytes:
    """Return a JSON string, escaped as in Triton: invalid UTF-8 is passed through."""
    return b'"' + _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text) + b'"'


def _strings(name: str, count: int, contents: bytes | memoryview) -> list[bytes]:
    try:
        ends = split_elements(contents, count)
    except ValueError as error:
        raise RefusedRequest(500, f"output tensor shape does not match size of output for '{name}'") from error
    return [bytes(contents[start + 4 : end]) for start, end in zip([0, *ends], ends, strict=False)]
