"""Parser of `--shape NAME:3,48,320`: sizes of a model's dynamic dimensions, fixed or drawn for each request."""

from collections.abc import Iterable, Mapping, Sequence

import typer

from tidegate.schemas import read_shape
from tidegate_loadtest.connection import LoadTestError

Size = int | Sequence[int]
"""Size of one dimension: fixed, or one of several, equally likely (a repeated one is likelier)."""
Shape = tuple[Size, ...]
"""Dimensions of an input without rows."""
Shapes = Mapping[str, Shape]
"""Shapes by INPUT or MODEL/INPUT."""


def parse_shapes(texts: Iterable[str]) -> dict[str, Shape]:
    """Parse dimensions without rows, by input name. Raises typer.BadParameter for a text that is not NAME:sizes."""
    return dict(_parse_shape(text) for text in texts)


def shape_of_request(model: str, shape: str) -> dict[str, tuple[int, ...]]:
    """Return the dimensions in a request's shape (`x:3,48,320;y:7`), by input. Raises LoadTestError."""
    try:
        return read_shape(shape)
    except ValueError as error:
        raise LoadTestError(f"models: {model!r}: {error}; no request can be made of it") from error


def _parse_shape(text: str) -> tuple[str, Shape]:
    name, colon, dims = text.rpartition(":")
    try:
        sizes = tuple(_parse_size(dim) for dim in dims.split(",")) if dims else ()
    except ValueError:
        name = ""
        sizes = ()
    if not name or not colon:
        raise typer.BadParameter(
            f"--shape {text!r}: write NAME:3,48,320, an input's dimensions without rows; "
            "160..640 (any between) or 160|320|640 (one of them) is drawn for each request"
        )
    return name, sizes


def _parse_size(text: str) -> Size:
    least, dots, most = text.partition("..")
    sizes: Sequence[int] = range(int(least), int(most) + 1) if dots else [int(size) for size in text.split("|")]
    if not sizes or min(sizes) < 0:
        raise ValueError(text)
    return sizes[0] if len(sizes) == 1 else sizes
