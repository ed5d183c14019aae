"""GPUs and their MIG instances as values."""

from dataclasses import dataclass
from enum import StrEnum

from tidegate.schemas import Device, Mig, MigGeometry


class MigError(Exception):
    """Error of a query or change of MIG instances; the message says what, where and the remedy."""


class MigMode(StrEnum):
    """MIG mode of a GPU."""

    NONE = "none"
    """The GPU does not support MIG."""
    OFF = "off"
    ON = "on"
    GOING_ON = "on after a reset"
    GOING_OFF = "off after a reset"


@dataclass(frozen=True)
class MigInstance:
    """Existing MIG instance of a GPU."""

    number: int
    """GPU instance ID in nvidia-smi."""
    profile: str
    start: int | None
    """First memory slice; None: not readable by this user."""
    uuid: str | None
    """UUID, as for CUDA_VISIBLE_DEVICES; None: it is divided into several devices, or has none."""
    processes: tuple[int, ...] = ()
    """Ids of the processes that compute on it."""

    @property
    def mig(self) -> Mig | None:
        """Instance in the form of layouts; None if it is not one device, or its placement is unknown."""
        return None if self.start is None or self.uuid is None else Mig(self.profile, self.start)

    def __str__(self) -> str:
        place = "an unknown place" if self.start is None else str(self.start)
        return f"{self.profile} at {place}" + ("" if self.uuid else " (cut again, or without a compute instance)")


@dataclass(frozen=True)
class MigGpu:
    """GPU of this machine with its MIG state."""

    number: int
    """Index of the GPU in nvidia-smi's order."""
    device: Device
    """Device, whose `id` is its UUID."""
    mode: MigMode
    geometry: MigGeometry | None
    """Supported instances, in the GPU's own terms; None: no MIG, or not readable by this user."""
    instances: tuple[MigInstance, ...]

    def __str__(self) -> str:
        return f"GPU {self.number} ({self.device.product})"
