"""Shapes of a model's requests in a scenario: their frequency and latency."""

from typing import Self

from pydantic import Field, model_validator

from tidegate.api import Profile
from tidegate.workload.partitions import of_kind
from tidegate.workload.profiles import ProfileSpec
from tidegate.workload.section import Name, ScenarioSection


class ShapeSpec(ScenarioSection):
    """One shape: its batches take `latency_factor` times as long as the model's profile says, or have their own
    profile.
    """

    shape: Name = Field(
        description="Shape as the proxy reads it: variable inputs, dimensions without the batch, e.g. x:3,48,320"
    )
    weight: float = Field(
        default=1.0, ge=0, description="Weight among the model's requests, relative to its other shapes"
    )
    latency_factor: float | None = Field(
        default=None, gt=0, lt=1e6, description="Factor on the latency of the model's profile"
    )
    profile: ProfileSpec | None = Field(default=None, description="... or a latency of its own, on every device class")
    profiles: dict[str, ProfileSpec] = Field(default_factory=dict, description="... or by device class")
    known_to_policy: bool = Field(default=True, description="false: policies do not get its latency and learn it")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.latency_factor is not None) + (self.profile is not None) + bool(self.profiles) > 1:
            raise ValueError("give times, profile (for every device class) or profiles (by device class): one of them")
        return self

    def lacks(self, device_class: str) -> bool:
        """Whether the shape has profiles by device class, and none for `device_class`."""
        return bool(self.profiles) and of_kind(self.profiles, device_class) is None

    def profile_from(self, base: Profile) -> Profile:
        """Return the profile of this shape, derived from the model's profile `base` on the same device class."""
        own = self.profile or of_kind(self.profiles, base.device_class)
        if own is not None:
            return own.build(base.partition, base.device_class, base.max_rows).of_shape(self.shape)
        return base.scaled(1.0 if self.latency_factor is None else self.latency_factor).of_shape(self.shape)
