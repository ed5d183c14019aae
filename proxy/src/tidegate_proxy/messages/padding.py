"""Padding of a model's requests to common sizes, within the one copy into the message, and cutting of outputs."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tidegate_proxy.messages import wire
from tidegate_proxy.messages.wire import Buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TensorResize:
    """Change of a tensor's shape: along every axis the common leading part is kept."""

    element_bytes: int
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    fill: int = 0
    """Bytes of an added element, as an integer of that size."""

    @property
    def size(self) -> int:
        """Size in bytes after the change."""
        return prod(self.sizes) * self.element_bytes

    def of(self, tensor: memoryview) -> "Piece":
        """Return a resized view of a tensor; nothing is copied now, or ever if the kept part is contiguous."""
        if self._keeps_a_beginning:
            return tensor[: self.size]
        return ResizedTensor(tensor, self)

    @property
    def _keeps_a_beginning(self) -> bool:
        """Whether what is kept is all that it becomes, and lies before all that is not."""
        changed = next(
            (axis for axis, (had, has) in enumerate(zip(self.shape, self.sizes, strict=True)) if had != has), 0
        )
        return (
            self.sizes[changed] <= self.shape[changed]
            and self.sizes[changed + 1 :] == self.shape[changed + 1 :]
            and prod(self.sizes[:changed]) == 1
        )

    def copy(self, tensor: memoryview, into: memoryview) -> None:
        """Copy a tensor, resized, into memory of its new size."""
        source, target = self._array(tensor, self.shape), self._array(into, self.sizes)
        common = tuple(slice(min(had, has)) for had, has in zip(self.shape, self.sizes, strict=True))
        target[common] = source[common]
        for axis, (had, has) in enumerate(zip(self.shape, self.sizes, strict=True)):
            if had < has:
                target[(*common[:axis], slice(had, None))] = self.fill

    def _array(self, memory: memoryview, shape: Sequence[int]) -> "NDArray[np.unsignedinteger[Any]]":
        return np.frombuffer(memory, f"u{self.element_bytes}").reshape(shape)


@dataclass(frozen=True, slots=True)
class ResizedTensor:
    """Tensor that is resized when it is copied."""

    tensor: memoryview
    resize: TensorResize

    def __len__(self) -> int:
        return self.resize.size


Piece: TypeAlias = Buffer | ResizedTensor
"""Piece of a tensor in a message, or in a region of shared memory."""


def write(pieces: Iterable[Piece], into: memoryview, at: int = 0) -> int:
    """Copy the pieces one after the other; return the end offset.

    `into`: memory to copy to; `at`: start offset in bytes.
    """
    for piece in pieces:
        end = at + len(piece)
        if isinstance(piece, ResizedTensor):
            piece.resize.copy(piece.tensor, into[at:end])
        else:
            into[at:end] = piece
        at = end
    return at


def join(header: bytes, tensors: Iterable[Iterable[Piece]], raw_field: int) -> bytes:
    """Build a message from a header and tensors, as `wire.join` does.

    `raw_field`: field number of the tensors.
    """
    pieces = wire.pieces_of(header, tensors, raw_field)
    as_they_are = [piece for piece in pieces if not isinstance(piece, ResizedTensor)]
    if len(as_they_are) == len(pieces):
        return b"".join(as_they_are)
    # New bytes are written in place: any other way to make them copies all of them once more.
    message = BytesIO(bytes(sum(map(len, pieces))))
    with message.getbuffer() as memory:
        write(pieces, memory)
    return message.getvalue()


@dataclass(frozen=True, slots=True)
class FollowingOutputSize:
    """Size of an output that follows a size of an input."""

    output: str
    axis: int
    """Axis in the shape of the whole tensor; 0 is the batch dimension."""
    scale: int
    offset: int
    stride: int

    def size(self, of_input: int) -> int:
        """Return the output size for an input size."""
        return -(-(self.scale * of_input + self.offset) // self.stride)


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """Axis of an input that is padded to common sizes."""

    input: str
    axis: int
    """Axis in the shape of the whole tensor; 0 is the batch dimension."""
    sizes: tuple[int, ...]
    fill: int
    """Bytes of an added element, as an integer."""
    followers: tuple[FollowingOutputSize, ...]


@dataclass(frozen=True, slots=True)
class OutputCut:
    """Cut of an output of a padded request along one axis."""

    output: str
    axis: int
    padded: int
    """Size in the response to the padded request."""
    size: int
    """Size that the client gets."""


@dataclass(frozen=True, slots=True)
class PaddingPlan:
    """Padding of requests of certain shapes."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of all inputs after padding."""
    resizes: Mapping[str, TensorResize]
    """Resizes of the inputs that need padding."""
    cuts: tuple[OutputCut, ...]
    sent: int
    """Number of elements of the padded inputs before padding."""
    added: int
    """Number of elements added by padding."""


def padded(
    axes: Sequence[PaddedAxis], shapes: Mapping[str, tuple[int, ...]], element_bytes: Mapping[str, int]
) -> PaddingPlan | None:
    """Return the padding of a request with these input shapes, rows first; None: no padding.

    None if its sizes are common ones already, exceed all common ones, or are so small that the model alone would fail.
    """
    grown = {name: list(shape) for name, shape in shapes.items()}
    cuts, fills = [], {}
    for each in axes:
        if each.input not in shapes:
            continue
        size = shapes[each.input][each.axis]
        position = bisect_left(each.sizes, size)
        if position == len(each.sizes) or size < 1:
            return None
        common = grown[each.input][each.axis] = each.sizes[position]
        fills[each.input] = each.fill
        cuts += [OutputCut(one.output, one.axis, one.size(common), one.size(size)) for one in each.followers]
    to = {name: tuple(shape) for name, shape in grown.items()}
    if to == shapes or any(cut.size < 1 for cut in cuts):
        return None
    resizes = {
        name: TensorResize(element_bytes[name], shapes[name], to[name], fills[name])
        for name in shapes
        if to[name] != shapes[name]
    }
    sent, run = (sum(prod(shape[name]) for name in resizes) for shape in (shapes, to))
    return PaddingPlan(to, resizes, tuple(cuts), sent, run - sent)
