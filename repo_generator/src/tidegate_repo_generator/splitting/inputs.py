"""Sizes of a model's inputs, as given by the user."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tidegate_repo_generator.dataflow import SplitError
from tidegate_repo_generator.model import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by input name, without the batch dimension."""

_SHAPE: Final = re.compile(r"(?P<name>.+):(?P<sizes>\d+(,\d+)*)")


def parse_shapes(options: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Read `NAME:SIZE,SIZE...`, without the batch dimension, as perf_analyzer's --shape does. Raises SplitError."""
    shapes = {}
    for option in options:
        match = _SHAPE.fullmatch(option)
        if match is None:
            raise SplitError(f"--shape {option}: give NAME:SIZE,SIZE..., without the batch dimension, e.g. x:3,48,320")
        shapes[match["name"]] = tuple(map(int, match["sizes"].split(",")))
    return shapes


def with_sizes(inputs: tuple[Tensor, ...], shapes: Shapes) -> tuple[Tensor, ...]:
    """Replace dynamic dimensions with the sizes given by the user. Raises SplitError if they do not fit."""
    unknown = sorted(set(shapes) - {tensor.name for tensor in inputs})
    if unknown:
        names = ", ".join(tensor.name for tensor in inputs)
        raise SplitError(f"--shape {unknown[0]}: the model has no such input; its inputs: {names}")
    sized = []
    for tensor in inputs:
        if not tensor.shape and tensor.name not in shapes:
            sized.append(tensor)
            continue
        sizes = shapes.get(tensor.name, tensor.shape[1:])
        fits = len(sizes) == len(tensor.shape) - 1 and all(
            isinstance(declared, str) or size == declared
            for size, declared in zip(sizes, tensor.shape[1:], strict=True)
        )
        if not fits:
            raise SplitError(
                f"--shape {tensor.name}: it is {tensor.dims[1:]} in the model (-1: any), not {list(sizes)}"
            )
        sized.append(Tensor(tensor.name, tensor.data_type, (*tensor.shape[:1], *sizes)))
    return tuple(sized)
