"""Reading an ELF file for where a library's calls of its own functions go."""

import struct
from pathlib import Path

import ngh2._core
import pytest

from tidegate_proxy.transport.http2.header_whitespace import _slots, allow_blanks

ELF = Path(ngh2._core.__file__).read_bytes()


def test_the_build_in_use_allows_for_blanks_and_saying_so_again_changes_nothing() -> None:
    assert allow_blanks()
    assert allow_blanks()


def test_functions_are_found_by_name_each_in_a_place_of_its_own() -> None:
    found = list(_slots(ELF))
    names = [name for name, _ in found]
    assert {b"nghttp2_check_header_value_rfc9113", b"nghttp2_session_mem_recv2", b"free"} <= {*names}
    assert len({slot for _, slot in found}) == len(found)


@pytest.mark.parametrize(
    "content",
    [b"", b"MZ", b"\x7fELF\x01\x01" + ELF[6:], ELF[:5] + b"\x02" + ELF[6:], ELF[:56] + struct.pack("<H", 0) + ELF[58:]],
    ids=["nothing", "another format", "32 bits", "big end first", "no segments"],
)
def test_what_cannot_be_read_is_left_alone(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"no ELF file|no table"):
        list(_slots(content))
