"""Copy a tensor into another shape on its way into a message: larger ones are filled, of smaller ones the end is cut.

Each byte is copied once, from where a client's request or Triton's answer has it to where the next message does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tidegate_proxy import wire
from tidegate_proxy.wire import Buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Resize:
    """What happens to a tensor: along every axis its beginning is kept, as much as there is in both shapes."""

    element_bytes: int
    shape: tuple[int, ...]
    to: tuple[int, ...]
    fill: int = 0
    """The bytes of an element that is added, as an integer of that size."""

    @property
    def size(self) -> int:
        """What it is afterwards, in bytes."""
        return prod(self.to) * self.element_bytes

    def of(self, tensor: memoryview) -> "Piece":
        """A tensor after it; not copied now, and not at all where what is kept lies in one piece."""
        if self._keeps_a_beginning:
            return tensor[: self.size]
        return Resized(tensor, self)

    @property
    def _keeps_a_beginning(self) -> bool:
        """Whether what is kept is all that it becomes, and lies before all that is not."""
        changed = next((axis for axis, (had, has) in enumerate(zip(self.shape, self.to, strict=True)) if had != has), 0)
        return (
            self.to[changed] <= self.shape[changed]
            and self.to[changed + 1 :] == self.shape[changed + 1 :]
            and prod(self.to[:changed]) == 1
        )

    def copy(self, tensor: memoryview, into: memoryview) -> None:
        """Write it, resized, to memory of its new size."""
        source, target = self._array(tensor, self.shape), self._array(into, self.to)
        common = tuple(slice(min(had, has)) for had, has in zip(self.shape, self.to, strict=True))
        target[common] = source[common]
        for axis, (had, has) in enumerate(zip(self.shape, self.to, strict=True)):
            if had < has:
                target[(*common[:axis], slice(had, None))] = self.fill

    def _array(self, memory: memoryview, shape: Sequence[int]) -> "NDArray[np.unsignedinteger[Any]]":
        return np.frombuffer(memory, f"u{self.element_bytes}").reshape(shape)


@dataclass(frozen=True, slots=True)
class Resized:
    """A tensor, as it is, that is to be in another shape where it goes."""

    tensor: memoryview
    resize: Resize

    def __len__(self) -> int:
        return self.resize.size


Piece: TypeAlias = Buffer | Resized
"""A part of a tensor that a message, or a region of shared memory, is made of."""


def write(pieces: Iterable[Piece], into: memoryview, at: int = 0) -> int:
    """Copy the pieces there, one after the other; where they end."""
    for piece in pieces:
        end = at + len(piece)
        if isinstance(piece, Resized):
            piece.resize.copy(piece.tensor, into[at:end])
        else:
            into[at:end] = piece
        at = end
    return at


def join(header: bytes, tensors: Iterable[Iterable[Piece]], raw_field: int) -> bytes:
    """A message from a header and tensors, as `wire.join` makes it."""
    pieces = wire.pieces_of(header, tensors, raw_field)
    as_they_are = [piece for piece in pieces if not isinstance(piece, Resized)]
    if len(as_they_are) == len(pieces):
        return b"".join(as_they_are)
    # Bytes that nobody else has are written in place: any other way to make them copies all of them once more.
    message = BytesIO(bytes(sum(map(len, pieces))))
    with message.getbuffer() as memory:
        write(pieces, memory)
    return message.getvalue()
