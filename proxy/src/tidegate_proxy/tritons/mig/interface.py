"""GPUs and their MIG instances as values, and what may be done to them."""

from dataclasses import dataclass
from enum import StrEnum

from tidegate.schemas import Device, Mig, MigGeometry


class MigError(Exception):
    """Error of a query or change of MIG instances; the message says what, where and the remedy."""


class MigMode(StrEnum):
    """Whether a GPU can be cut."""

    NONE = "none"
    """It has no MIG."""
    OFF = "off"
    ON = "on"
    GOING_ON = "on after a reset"
    GOING_OFF = "off after a reset"


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance that there is."""

    number: int
    """Its GPU instance ID in nvidia-smi."""
    profile: str
    start: int | None
    """Its first memory slice; None: this user is not told."""
    uuid: str | None
    """Its own, as CUDA_VISIBLE_DEVICES takes it; None: it is not one device, but cut again, or without any."""
    processes: tuple[int, ...] = ()
    """The ids of those that compute on it."""

    @property
    def mig(self) -> Mig | None:
        """It as layouts have it; None where it is not one device, or where its place is not told."""
        return None if self.start is None or self.uuid is None else Mig(self.profile, self.start)

    def __str__(self) -> str:
        place = "an unknown place" if self.start is None else str(self.start)
        return f"{self.profile} at {place}" + ("" if self.uuid else " (cut again, or without a compute instance)")


@dataclass(frozen=True)
class MigGpu:
    """A GPU of this machine."""

    number: int
    """Index of the GPU in nvidia-smi's order."""
    device: Device
    """Its `id` is its UUID."""
    mode: MigMode
    geometry: MigGeometry | None
    """Into what it can be cut, in its own words; None: it has no MIG, or this user is not told."""
    instances: tuple[MigInstance, ...]

    def __str__(self) -> str:
        return f"GPU {self.number} ({self.device.product})"
