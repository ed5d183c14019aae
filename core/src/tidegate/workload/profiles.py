"""Latency of batches in a scenario: a straight line, measured points, or a CSV table of either."""

import csv
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, model_validator

from tidegate.api import Profile
from tidegate.workload.section import ScenarioSection

Milliseconds = Annotated[float, Field(ge=0, lt=1e9)]


class ProfileSpec(ScenarioSection):
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


def folder_of(info: ValidationInfo) -> Path:
    """Return the folder that relative paths in a scenario refer to."""
    return Path((info.context or {}).get("folder", "."))


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
