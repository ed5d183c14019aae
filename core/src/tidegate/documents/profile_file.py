"""The profile file: what was measured (`tidegate profile`), and the profiles that schedulers start from."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidegate.api import Profile


class ProfileFileError(Exception):
    """A profile file that cannot be used; the message names file, field and remedy."""


Milliseconds = Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)]
"""A latency: at least a nanosecond, the unit of the contract."""


class Point(BaseModel):
    """Latency of one batch size, in milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rows: int = Field(ge=1)
    median_ms: Milliseconds
    p95_ms: Milliseconds
    samples: int = Field(ge=1)


class ModelProfile(BaseModel):
    """One model on one kind of worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str
    kind: str = "default"
    alpha_ms: float
    """The slope of the straight line through the medians: milliseconds per row."""
    beta_ms: float
    """The height of the same line at 0: milliseconds per batch."""
    points: list[Point] = Field(min_length=1)

    def to_profile(self, max_rows: int) -> Profile:
        """The profile to plan with: the medians are expected, the 95th percentiles planned."""
        expected_ms = {point.rows: point.median_ms for point in self.points}
        planned_ms = {point.rows: point.p95_ms for point in self.points}
        return Profile.from_points(self.model, expected_ms, planned_ms, max_rows=max_rows, kind=self.kind)


class ProfileFile(BaseModel):
    """The document: versioned, for people to read and diff."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    profiles: list[ModelProfile]


def read_profiles(path: Path) -> ProfileFile:
    """Read a profile file. Raises ProfileFileError."""
    try:
        return ProfileFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ProfileFileError(f"{path}: {error.strerror}; `tidegate profile` writes such a file") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}" for e in error.errors()[:3])
        raise ProfileFileError(f"{path}: {wrong}; `tidegate profile` writes such a file") from error


def write_profile(path: Path, profile: ModelProfile) -> None:
    """Put a model's profile into a file, in place of an older one of that model. Raises ProfileFileError."""
    others = read_profiles(path).profiles if path.exists() else []
    kept = [other for other in others if (other.model, other.kind) != (profile.model, profile.kind)]
    document = ProfileFile(profiles=sorted([*kept, profile], key=lambda entry: (entry.model, entry.kind)))
    path.write_text(document.model_dump_json(indent=2) + "\n")
