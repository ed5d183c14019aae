"""Which sizes of a model's requests are padded to common ones, and which sizes of its outputs are cut back.

The operator says so (`declared_padding`); what it means for requests of some shapes is found once for all that say the
same (`heading`). A request that is padded has the padded shapes for
scheduling, and always runs so: what it is answered does not depend on who shares its batch.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tidegate_proxy.resizing import Resize


@dataclass(frozen=True, slots=True)
class Follower:
    """A size of an output that follows a size of an input."""

    output: str
    axis: int
    """As in the shape of the whole tensor: 0 are the rows."""
    times: int
    plus: int
    per: int

    def size(self, of_input: int) -> int:
        """What it is where the input's is that."""
        return -(-(self.times * of_input + self.plus) // self.per)


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """A size of an input that is brought to common ones."""

    input: str
    axis: int
    """As in the shape of the whole tensor: 0 are the rows."""
    sizes: tuple[int, ...]
    fill: int
    """An added element, its bytes as an integer."""
    followers: tuple[Follower, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A size of an output of a request that was padded."""

    output: str
    axis: int
    padded: int
    """What it is in the answer to the padded request."""
    size: int
    """What it is to be."""


@dataclass(frozen=True, slots=True)
class Padded:
    """What happens to requests of some shapes."""

    shapes: Mapping[str, tuple[int, ...]]
    """The shapes of all of their inputs, as they run."""
    resizes: Mapping[str, Resize]
    """How the inputs are padded that are not of such a shape already."""
    cuts: tuple[Cut, ...]
    sent: int
    """How many elements the inputs have that are padded, as they came."""
    added: int
    """How many more they have as they run."""


def padded(
    axes: Sequence[PaddedAxis], shapes: Mapping[str, tuple[int, ...]], element_bytes: Mapping[str, int]
) -> Padded | None:
    """What happens to a request with inputs of these shapes, rows first, and elements.

    None: nothing, as its sizes are common ones already, or one is larger than all of those, or so small that the model
    alone could answer nothing.
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
        cuts += [Cut(one.output, one.axis, one.size(common), one.size(size)) for one in each.followers]
    to = {name: tuple(shape) for name, shape in grown.items()}
    if to == shapes or any(cut.size < 1 for cut in cuts):
        return None
    resizes = {
        name: Resize(element_bytes[name], shapes[name], to[name], fills[name])
        for name in shapes
        if to[name] != shapes[name]
    }
    sent, run = (sum(prod(shape[name]) for name in resizes) for shape in (shapes, to))
    return Padded(to, resizes, tuple(cuts), sent, run - sent)
