"""Shapes of requests as text, `x:3,48,320;y:7`: the key of profiles.

A shape lists the inputs with variable dimensions beyond the batch, sorted by name, each with its dimensions without the
batch.
"""

from collections.abc import Mapping, Sequence

from tidegate.api.shape import read_sizes


def format_shape(dimensions: Mapping[str, Sequence[int]]) -> str:
    """Return the shape of requests as text from the dimensions of their inputs, without rows; empty for no inputs."""
    return ";".join(f"{name}:{','.join(map(str, sizes))}" for name, sizes in sorted(dimensions.items()))


def read_shape(text: str) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of each input by name; names may contain colons. Raises ValueError with the remedy."""
    dimensions: dict[str, tuple[int, ...]] = {}
    for part in text.split(";") if text else ():
        name, _, listed = part.rpartition(":")
        sizes = read_sizes(listed)
        if not name or sizes is None:
            raise ValueError(f"{text!r} is no shape: write NAME:3,48,320, several inputs as NAME:3,48,320;NAME:7")
        if name in dimensions:
            raise ValueError(f"{text!r} names the input {name!r} twice: leave one of them out")
        dimensions[name] = sizes
    return dimensions
