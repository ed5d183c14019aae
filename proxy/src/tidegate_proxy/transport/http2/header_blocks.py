"""Header blocks that libnghttp2 would not take, made shorter before it sees them.

A header of more than 64 KiB makes it end the connection, and with it every call that goes over it. A model says in an
error what it likes, and Triton sends all of that in one header.
"""

from typing import Final

_FRAME_HEAD: Final = 9
_HEADERS: Final = 0x1
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_PRIORITY: Final = 0x20
LONGEST_FRAME: Final = 1 << 15
"""The most bytes of a header block in one frame: what is longer is looked at."""
KEPT_BYTES: Final = 1 << 13
"""The most bytes of a name or a value: more than HPACK's table (4 KiB), so that whoever is to keep it keeps neither."""
_CUT_OFF: Final = b" ..."


class HeaderBlocks:
    """What comes over one connection, frame by frame; all but long header blocks stays as it is."""

    def __init__(self) -> None:
        self._left = 0
        """Bytes of the current frame that are still to come."""
        self._head = bytearray()
        """The beginning of a frame, as far as it has come, where it has not come whole."""
        self._block: bytearray | None = None
        """What has come of a long header block; None: nothing is held back."""
        self._opening = b""
        """The head of the frame that block began with."""
        self._is_last = False
        """Whether the current frame ends the block."""

    def shortened(self, data: memoryview) -> memoryview | bytes:
        """What was read, in the form that libnghttp2 takes; some of it may be held back until more is read."""
        if self._block is None and not self._head:
            at, size = self._left, len(data)
            while at + _FRAME_HEAD <= size:
                length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
                if data[at + 3] == _HEADERS and (length > LONGEST_FRAME or not data[at + 4] & _END_HEADERS):
                    break
                at += _FRAME_HEAD + length
            else:
                if at >= size:
                    self._left = at - size
                    return data
        return b"".join(self._pieces(data))

    def _pieces(self, data: memoryview) -> list[memoryview | bytes]:
        pieces: list[memoryview | bytes] = []
        while data:
            if not self._left:
                missing = _FRAME_HEAD - len(self._head)
                self._head += data[:missing]
                data = data[missing:]
                if len(self._head) == _FRAME_HEAD:
                    pieces.append(self._begun(bytes(self._head)))
                    self._head.clear()
                continue
            payload, data = data[: self._left], data[self._left :]
            self._left -= len(payload)
            if self._block is None:
                pieces.append(payload)
            else:
                self._block += payload
                if not self._left and self._is_last:
                    pieces.append(self._ended())
        return pieces

    def _begun(self, head: bytes) -> bytes:
        """A frame begins; what leaves of that."""
        self._left, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
        self._is_last = bool(flags & _END_HEADERS)
        if self._block is None:
            if kind != _HEADERS or (self._is_last and self._left <= LONGEST_FRAME):
                return head
            self._block, self._opening = bytearray(), head
        return b"" if self._left or not self._is_last else self._ended()

    def _ended(self) -> bytes:
        """A block is there as a whole; the frame that leaves in its place."""
        assert self._block is not None
        block, flags, stream = bytes(self._block), self._opening[4], self._opening[5:]
        self._block = None
        if flags & _PADDED:
            first = int.from_bytes(self._opening[:3])  # what continues it has no padding
            block = block[1 : first - block[0]] + block[first:]
        if flags & _PRIORITY:
            block = block[5:]
        block = shorter(block)
        flags = flags & ~(_PADDED | _PRIORITY) | _END_HEADERS
        return len(block).to_bytes(3) + bytes((_HEADERS, flags)) + stream + block


def shorter(block: bytes) -> bytes:
    """A header block (RFC 7541, section 6) whose names and values are cut off where they are long.

    One that is none is given back as it is: whoever decodes it says what is wrong.
    """
    fields, at = bytearray(), 0
    try:
        while at < len(block):
            kind = block[at]
            if kind & 0x80:  # a header from the table
                literals, start, (index, at) = 0, at, _integer(block, at, 7)
            elif kind & 0xE0 == 0x20:  # the table's size
                literals, start, (index, at) = 0, at, _integer(block, at, 5)
            else:
                start, (index, at) = at, _integer(block, at, 6 if kind & 0x40 else 4)
                literals = 1 if index else 2
            fields += block[start:at]
            for _ in range(literals):
                is_coded = block[at] & 0x80
                length, at = _integer(block, at, 7)
                text = block[at : at + length]
                at += length
                if length <= KEPT_BYTES:
                    fields += _length(length, is_coded) + text
                else:  # Huffman's code ends anywhere within a byte
                    text = b"?" * KEPT_BYTES if is_coded else text[: KEPT_BYTES - len(_CUT_OFF)] + _CUT_OFF
                    fields += _length(len(text), 0) + text
    except IndexError:
        return block
    return bytes(fields) if at == len(block) else block


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """The number there, of which so many bits are in its first byte, and where it ends. Raises IndexError."""
    most = (1 << bits) - 1
    value, at = block[at] & most, at + 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        value, shift, at = value + ((byte & 0x7F) << shift), shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _length(value: int, is_coded: int) -> bytes:
    """The length of a text, as it is written before it; `is_coded`: 0x80 if Huffman's code is used."""
    if value < 0x7F:
        return bytes((is_coded | value,))
    written = bytearray((is_coded | 0x7F,))
    value -= 0x7F
    while value >= 0x80:
        written.append(0x80 | value & 0x7F)
        value >>= 7
    written.append(value)
    return bytes(written)
