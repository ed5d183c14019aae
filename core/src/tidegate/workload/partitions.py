"""Partitions and pipelines of a scenario's models, with their profiles."""

from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

from pydantic import Field, model_validator

from tidegate.workload.profiles import ProfileSpec
from tidegate.workload.section import Name, ScenarioSection

P = TypeVar("P")


def of_kind(profiles: Mapping[str, P], device_class: str) -> P | None:
    """Return the entry of a device class `device_class`; for a part of a GPU (`A100/mps-50`) without an entry that of
    the GPU.
    """
    return profiles.get(device_class) or profiles.get(device_class.rpartition("/")[0])


class PartitionSpec(ScenarioSection):
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


class PipelineSpec(ScenarioSection):
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
