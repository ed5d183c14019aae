"""Devices, and the parts of them that workers are bound to."""

from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

DEFAULT_KIND = "default"
"""The kind of workers of which nothing is known."""


class WholeDevice(msgspec.Struct, frozen=True, tag="whole", forbid_unknown_fields=True):
    """All of a device, as long as nobody else uses it."""


class Mig(msgspec.Struct, frozen=True, tag="mig", forbid_unknown_fields=True):
    """A MIG instance: part of a device with compute units and memory of its own, which others do not disturb."""

    profile: Annotated[str, Meta(pattern=r"^[0-9a-z.+-]+\Z")]
    """The size of the instance as NVIDIA writes it, e.g. `1g.5gb`."""
    start: Annotated[int, Meta(ge=0)]
    """The first of the device's memory slices that are its own."""


class Mps(msgspec.Struct, frozen=True, tag="mps", forbid_unknown_fields=True, omit_defaults=True):
    """A share of the compute units of a device, or of a MIG instance, through NVIDIA MPS: a cap, no reservation.

    The shares may exceed 100 %.
    """

    percent: Annotated[int, Meta(ge=1, le=100)]
    """The percentage of those compute units that it may use (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)."""
    memory_mib: Annotated[int, Meta(ge=1)] | None = None
    """The most device memory that it may take, in MiB; None: not limited."""
    instance: Mig | None = None
    """The MIG instance of which it is a share; None: of the whole device."""


Slice = WholeDevice | Mig | Mps
"""How much of a device a worker has."""


def mig_instance(part: Slice) -> Mig | None:
    """The MIG instance that a slice is, or is in; None: its device is not to be cut."""
    match part:
        case WholeDevice():
            return None
        case Mig():
            return part
        case Mps():
            return part.instance
        case _:
            assert_never(part)


def compute_percent(part: Slice) -> int:
    """The percentage of the compute units of its device, or of its MIG instance, that a worker may use."""
    match part:
        case WholeDevice() | Mig():
            return 100
        case Mps():
            return part.percent
        case _:
            assert_never(part)


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU of a machine. Workers with equal devices share it."""

    node: str
    """The machine that it is in."""
    id: Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=r"^(GPU|MIG-GPU|MIG)-[0-9a-fA-F/-]+\Z")]
    """The number of the device in that machine, from 0, or its UUID."""
    product: str = ""
    """What it is, e.g. `A100`: devices of one product are equally fast."""
    memory_mib: Annotated[int, Meta(ge=1)] | None = None
    """None: not known."""

    def kind(self, part: Slice) -> str:
        """The kind of a worker that has this part of it: `A100`, `A100/1g.5gb`, `A100/mps-25`, `A100/1g.5gb/mps-25`."""
        product = self.product or DEFAULT_KIND
        match part:
            case WholeDevice():
                return product
            case Mig():
                return f"{product}/{part.profile}"
            case Mps():
                whole = self.kind(part.instance or WholeDevice())
                return f"{whole}/mps-{part.percent}"
            case _:
                assert_never(part)
