"""`--shape NAME=3,48,320` on a command line: the dimensions that a model leaves open."""

from collections.abc import Iterable

import typer


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Dimensions without rows, by input name. Raises typer.BadParameter for what is not NAME=sizes."""
    return dict(_parse_shape(text) for text in texts)


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, dims = text.partition("=")
    try:
        sizes = tuple(int(dim) for dim in dims.split(",")) if dims else ()
    except ValueError:
        sizes = (-1,)
    if not name or not equals or any(size < 0 for size in sizes):
        raise typer.BadParameter(f"--shape {text!r}: write NAME=3,48,320, an input's dimensions without rows")
    return name, sizes
