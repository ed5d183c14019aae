"""The shapes that a model is to be measured with: written on the command line, or drawn from recorded traffic."""

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
"""The dimensions of each input, by name, without the rows."""


@dataclass(frozen=True)
class RequestedShape:
    """A shape that somebody wants measured."""

    text: str
    """As it was written; empty: nothing varies."""
    dimensions: Dimensions
    source: str
    """What it was written in, for errors."""
    requests: int | None = None
    """How many requests of a recording had it; None: it was not drawn from one."""


@dataclass(frozen=True)
class RecordedShapes:
    """What a recording says of the shapes of a model's requests."""

    shapes: tuple[RequestedShape, ...]
    """The most frequent ones, most requests first."""
    distinct: int
    """How many shapes there were in all."""
    requests: int
    """How many requests of the model there were in all."""

    @property
    def share(self) -> float:
        """The share of the requests that had one of `shapes`."""
        return sum(shape.requests or 0 for shape in self.shapes) / self.requests


def parse_asked(texts: Iterable[str]) -> list[RequestedShape]:
    """The shapes of `--shape x:3,48,320;y:7`. Raises typer.BadParameter for what is none."""
    asked = []
    for text in texts:
        try:
            asked.append(RequestedShape(text, read_shape(text), f"--shape {text}"))
        except ValueError as error:
            raise typer.BadParameter(f"{error}, each with its dimensions without rows", param_hint="--shape") from error
    return asked


def recorded_shapes(recording: BinaryIO, model: str, most: int) -> RecordedShapes:
    """The `most` frequent shapes of a model's requests in the event log of `tidegate serve --event-log`.

    Raises LoadTestError for a file that is no event log, and for one without a request of the model whose shape it
    tells in full (it cuts those of more than a hundred characters).
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
