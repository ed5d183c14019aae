"""Shapes to measure for a model: from the command line, or from recorded traffic."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import typer

from tidegate.api import RequestArrived
from tidegate.observation import read_log
from tidegate.schemas import read_shape
from tidegate_loadtest.connection import LoadTestError

Dimensions = Mapping[str, tuple[int, ...]]
"""Dimensions of each input, by name, without the rows."""


@dataclass(frozen=True)
class RequestedShape:
    """Shape that was requested for measurement."""

    text: str
    """Text of the shape; "" if no dimension is dynamic."""
    dimensions: Dimensions
    source: str
    """Option or file that the shape comes from, for error messages."""
    requests: int | None = None
    """Number of requests in an event log with this shape; None: it was not drawn from one."""


@dataclass(frozen=True)
class RecordedShapes:
    """Shapes of a model's requests in an event log."""

    shapes: tuple[RequestedShape, ...]
    """Most frequent shapes, those with most requests first."""
    distinct: int
    """Number of different shapes in all."""
    requests: int
    """Number of the model's requests in all."""

    @property
    def share(self) -> float:
        """Fraction of the requests that had one of `shapes`."""
        return sum(shape.requests or 0 for shape in self.shapes) / self.requests


def parse_asked(texts: Iterable[str]) -> list[RequestedShape]:
    """Parse the shapes of `--shape x:3,48,320;y:7`. Raises typer.BadParameter if one is invalid."""
    asked = []
    for text in texts:
        try:
            asked.append(RequestedShape(text, read_shape(text), f"--shape {text}"))
        except ValueError as error:
            raise typer.BadParameter(f"{error}, each with its dimensions without rows", param_hint="--shape") from error
    return asked


def recorded_shapes(recording: BinaryIO, model: str, most: int) -> RecordedShapes:
    """Return the `most` frequent shapes of a model's requests in the event log of `tidegate serve`.

    Raises LoadTestError if the file is no event log, or has no request of the model with a complete shape (logs
    truncate shapes of more than a hundred characters).
    """
    counts: dict[str, Counter[str]] = {}
    try:
        for entry in read_log(recording)[1]:
            if isinstance(entry.event, RequestArrived):
                request = entry.event.request
                counts.setdefault(request.model, Counter())[request.shape] += 1
    except ValueError as error:
        raise LoadTestError(f"{recording.name}: {error}") from error
    if model not in counts:
        has = ", ".join(sorted(counts)) or "no requests at all"
        raise LoadTestError(
            f"{recording.name}: no request of model {model!r} in it, but {has}: record its traffic with "
            "`tidegate serve --event-log`"
        )
    found = []
    for text, requests in counts[model].most_common():
        try:
            found.append(RequestedShape(text, read_shape(text), f"{recording.name}: {text or 'no shape'}", requests))
        except ValueError:  # it was cut
            continue
    if not found:
        raise LoadTestError(f"{recording.name}: the shapes of model {model!r} in it are cut: write them with --shape")
    return RecordedShapes(tuple(found[:most]), len(counts[model]), counts[model].total())
