"""Trailing blanks in header values, which gRPC's core sends and accepts: some of Triton's messages end with one.

RFC 9113 calls such a value malformed, and libnghttp2 resets its stream, including the status, unless the option
`nghttp2_option_set_no_rfc9113_leading_and_trailing_ws_validation` is set, which `ngh2` does not expose. So the pointer
to the strict check is replaced with that to the lenient one, in the ELF library's table of exported functions, where
the addresses are data.
"""

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from struct import Struct, error
from typing import Final

import ngh2._core

_STRICT: Final = b"nghttp2_check_header_value_rfc9113"
_LENIENT: Final = b"nghttp2_check_header_value"
_HEADER: Final = Struct("<16xHHIQQQIHHH")
"""An ELF file's header, 64 bits: type, machine, version, entry, program and section headers, flags, sizes, numbers."""
_SEGMENT: Final = Struct("<IIQQQQQQ")
"""Type, flags, offset in the file, address, physical address, size in the file, size in memory, alignment."""
_PAIR: Final = Struct("<QQ")
_SYMBOL_BYTES: Final = 24
_RELOCATION: Final = Struct("<QQq")
"""Address, symbol and type, addend."""
_LOAD, _DYNAMIC = 1, 2
_PLT_BYTES, _STRINGS, _SYMBOLS, _PLT = 2, 5, 6, 23


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def allow_blanks() -> bool:
    """Make libnghttp2 accept header values with blanks around them; return False if its build does not allow that."""
    path = ngh2._core.__file__
    library, own = ctypes.CDLL(path), ctypes.CDLL(None)
    try:
        lenient = ctypes.cast(library[_LENIENT.decode()], ctypes.c_void_p).value
        slots = [slot for name, slot in _slots(Path(path).read_bytes()) if name == _STRICT]
    except (AttributeError, ValueError, error):
        return False
    info = _DlInfo()
    if not slots or not lenient or not own.dladdr(ctypes.c_void_p(lenient), ctypes.byref(info)):
        return False
    for slot in slots:
        address = info.base + slot
        page = address & -mmap.PAGESIZE
        if own.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE):
            return False
        ctypes.c_void_p.from_address(address).value = lenient
    return True


def _slots(elf: bytes) -> Iterator[tuple[bytes, int]]:
    """The functions that a library calls through its table: their names, and where their addresses are, from its base.

    Raises ValueError for what is no ELF file of 64 bits, little end first.
    """
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits")
    _, _, _, _, at, _, _, _, size, number = _HEADER.unpack_from(elf)
    segments = [_SEGMENT.unpack_from(elf, at + index * size) for index in range(number)]

    def offset(address: int) -> int:
        for kind, _, begins, virtual, _, in_file, _, _ in segments:
            if kind == _LOAD and virtual <= address < virtual + in_file:
                return int(begins + address - virtual)
        raise ValueError("an address that is not in the file")

    dynamic: dict[int, int] = {}
    for kind, _, begins, _, _, in_file, _, _ in segments:
        if kind == _DYNAMIC:
            dynamic = dict(_PAIR.iter_unpack(elf[begins : begins + in_file]))
    if not dynamic.keys() >= {_PLT_BYTES, _STRINGS, _SYMBOLS, _PLT}:
        raise ValueError("no table of functions")
    strings, symbols, table = offset(dynamic[_STRINGS]), offset(dynamic[_SYMBOLS]), offset(dynamic[_PLT])
    for slot, information, _ in _RELOCATION.iter_unpack(elf[table : table + dynamic[_PLT_BYTES]]):
        symbol = symbols + (information >> 32) * _SYMBOL_BYTES
        name = strings + int.from_bytes(elf[symbol : symbol + 4], "little")
        yield elf[name : elf.index(b"\0", name)], slot
