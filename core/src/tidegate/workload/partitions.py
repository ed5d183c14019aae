"""Partitions and pipelines of a scenario's models, with the latency of their batches."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import Field, ValidationInfo, model_validator

from tidegate.api import Profile
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import Name, folder_of

Milliseconds = Annotated[float, Field(ge=0, lt=1e9)]


class ProfileSpec(DocumentSection):
    """Latency of a batch by its rows: exactly one of `alpha_ms` with `beta_ms`, `points_ms`, or `csv`."""

    alpha_ms: Milliseconds | None = Field(default=None, description="Milliseconds per row")
    beta_ms: Milliseconds | None = Field(default=None, description="Milliseconds per batch")
    points_ms: dict[int, Milliseconds] | None = Field(
        default=None, min_length=1, description="Measured latency: {rows: milliseconds}, interpolated linearly"
    )
    csv: str | None = Field(default=None, description="CSV file with the columns rows,latency_ms; becomes `points_ms`")
    max_batch: int | None = Field(default=None, ge=1, le=65536, description="The largest batch, in rows")

    @model_validator(mode="before")
    @classmethod
    def _read_csv(cls, given: object, info: ValidationInfo) -> object:
        if not (isinstance(given, dict) and isinstance(given.get("csv"), str) and given.get("points_ms") is None):
            return given
        rows = read_table(folder_of(info) / given["csv"], ("rows", "latency_ms"))
        points = {_number(given["csv"], row["rows"]): _number(given["csv"], row["latency_ms"]) for row in rows}
        return {**given, "csv": None, "points_ms": points}

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        line = self.alpha_ms is not None and self.beta_ms is not None
        if (self.alpha_ms is None) != (self.beta_ms is None) or line == (self.points_ms is not None):
            raise ValueError("give alpha_ms and beta_ms, or points_ms, or csv: exactly one of the three")
        if self.alpha_ms == self.beta_ms == 0:
            raise ValueError("alpha_ms and beta_ms are both zero: a batch takes some time")
        if self.points_ms is not None and (min(self.points_ms) < 1 or min(self.points_ms.values()) <= 0):
            raise ValueError("points_ms needs rows from 1 on and positive milliseconds")
        return self

    def build(self, partition: str, device_class: str, max_rows: int) -> Profile:
        """Return the profile of a partition on a device class `device_class`, for up to `max_rows` rows."""
        if self.points_ms is not None:
            return Profile.from_points(partition, self.points_ms, max_rows=max_rows, device_class=device_class)
        assert self.alpha_ms is not None, "checked when it was read"
        assert self.beta_ms is not None, "checked when it was read"
        return Profile.linear(
            partition, alpha_ms=self.alpha_ms, beta_ms=self.beta_ms, max_rows=max_rows, device_class=device_class
        )


def read_table(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the rows of a CSV file that has at least these columns. Raises ValueError with file and remedy."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            rows = [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"{path}: {why}; paths start from the folder of the scenario") from error
    if missing := [name for name in columns if name not in names]:
        raise ValueError(f"{path}: no column {missing[0]!r}; it needs {', '.join(columns)}")
    if not rows:
        raise ValueError(f"{path}: it has a header and nothing else")
    return rows


def _number(path: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{path}: {text!r} is no number") from error


P = TypeVar("P")


def of_kind(profiles: Mapping[str, P], device_class: str) -> P | None:
    """Return the entry of a device class `device_class`; for a part of a GPU (`A100/mps-50`) without an entry that of
    the GPU.
    """
    return profiles.get(device_class) or profiles.get(device_class.rpartition("/")[0])


class PartitionSpec(DocumentSection):
    """Consecutive blocks of a model, loaded as a model of their own."""

    name: Name
    profile: ProfileSpec | None = Field(default=None, description="Latency that policies expect, on every device class")
    profiles: dict[Name, ProfileSpec] = Field(default_factory=dict, description="... or by device class")
    output_bytes: int = Field(
        default=0, ge=0, description="Bytes of one row of output, as transferred to the next partition"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.profile is None) == (not self.profiles):
            raise ValueError("give profile (for every GPU) or profiles (by device class): one of the two")
        return self

    def profile_on(self, device_class: str) -> ProfileSpec | None:
        """Return the profile of the partition on a device class `device_class`; None if it has none."""
        return self.profile or of_kind(self.profiles, device_class)


class PipelineSpec(DocumentSection):
    """A sequence of partitions with one batch size."""

    batch: int = Field(ge=1, le=65536, description="Maximum batch size in rows")
    partitions: list[PartitionSpec] = Field(min_length=1)


def blocks_of(pipelines: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Return the blocks, [first, end), of every partition of a model.

    Raises ValueError if a partition would follow itself in a pipeline.
    """
    cuts: dict[tuple[str, str], tuple[str, str]] = {}

    def cut(which: tuple[str, str]) -> tuple[str, str]:
        while which in cuts:
            which = cuts[which]
        return which

    for names in pipelines:
        at = ("", "end")  # of nothing: where the model begins
        for name in names:
            begin, before = cut((name, "begin")), cut(at)
            if begin != before:
                cuts[begin] = before  # they are one place
            at = (name, "end")
    parts = {name for names in pipelines for name in names}
    ending: dict[tuple[str, str], list[str]] = {}
    for name in sorted(parts):
        ending.setdefault(cut((name, "end")), []).append(name)
    places: dict[tuple[str, str], int | None] = {}

    def place(where: tuple[str, str]) -> int:
        """Return the number of blocks before a cut, along the longest pipeline that leads there."""
        if where in places:
            known = places[where]
            if known is None:
                raise ValueError(f"pipelines: {ending[where][0]!r} would come after itself: name partitions by blocks")
            return known
        places[where] = None
        places[where] = found = max((place(cut((name, "begin"))) + 1 for name in ending.get(where, ())), default=0)
        return found

    return {name: (place(cut((name, "begin"))), place(cut((name, "end")))) for name in sorted(parts)}
