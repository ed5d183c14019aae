"""Devices, and the parts of them that workers are bound to."""

from collections.abc import Mapping
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

DEFAULT_DEVICE_CLASS = "default"
"""Device class of workers whose device is not described."""


class WholeDevice(msgspec.Struct, frozen=True, tag="whole", forbid_unknown_fields=True):
    """The whole device, used by one worker."""


class Mig(msgspec.Struct, frozen=True, tag="mig", forbid_unknown_fields=True):
    """A MIG instance: a part of a GPU with its own compute units and memory, isolated from other instances."""

    profile: Annotated[str, Meta(pattern=r"^[0-9a-z.+-]+\Z")]
    """The instance profile as NVIDIA writes it, e.g. `1g.5gb`."""
    start: Annotated[int, Meta(ge=0)]
    """Index of the first memory slice of the GPU that the instance uses."""


class Mps(msgspec.Struct, frozen=True, tag="mps", forbid_unknown_fields=True, omit_defaults=True):
    """A limit on the compute units of a GPU or a MIG instance, through NVIDIA MPS. It reserves nothing.

    The percentages of the workers on one GPU may add up to more than 100.
    """

    percent: Annotated[int, Meta(ge=1, le=100)]
    """Percentage of the compute units that the worker may use (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), 1 to 100."""
    memory_mib: Annotated[int, Meta(ge=1)] | None = None
    """Limit of device memory in MiB; None: no limit."""
    instance: Mig | None = None
    """The MIG instance that the percentage refers to; None: the whole GPU."""


Slice = WholeDevice | Mig | Mps
"""The part of a device that a worker uses."""


def mig_instance(part: Slice) -> Mig | None:
    """Return the MIG instance that a slice is or lies in; None if the GPU must not be partitioned."""
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
    """Return the percentage of compute units, of its GPU or MIG instance, that a worker may use."""
    match part:
        case WholeDevice() | Mig():
            return 100
        case Mps():
            return part.percent
        case _:
            assert_never(part)


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A GPU of a machine. Workers with equal devices share the GPU."""

    node: str
    """Name of the machine."""
    id: Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=r"^(GPU|MIG-GPU|MIG)-[0-9a-fA-F/-]+\Z")]
    """Index of the GPU in its machine, from 0, or its UUID."""
    product: str = ""
    """Product name, e.g. `A100`; devices of one product are equally fast."""
    memory_mib: Annotated[int, Meta(ge=1)] | None = None
    """Device memory in MiB; None: unknown."""

    def device_class(self, part: Slice) -> str:
        """Return the device class of a worker that uses this part of the device.

        For example `A100`, `A100/1g.5gb`, `A100/mps-25` or `A100/1g.5gb/mps-25`.
        """
        product = self.product or DEFAULT_DEVICE_CLASS
        match part:
            case WholeDevice():
                return product
            case Mig():
                return f"{product}/{part.profile}"
            case Mps():
                whole = self.device_class(part.instance or WholeDevice())
                return f"{whole}/mps-{part.percent}"
            case _:
                assert_never(part)


NS_PER_S = 1_000_000_000


class Network(msgspec.Struct, frozen=True):
    """Cost of moving the output of a stage to the node of the next stage.

    Each node has one uplink and one downlink. A transfer occupies the sender's uplink and the receiver's downlink at
    once, one transfer at a time on each (PPipe, section 5.4). Within a node a transfer takes no time.
    """

    bytes_per_row: Mapping[str, int]
    """Output bytes of one row, by partition; 0 for partitions not listed."""
    bytes_per_s: float
    """Bandwidth of each uplink and each downlink in bytes per second, positive."""
    latency_ns: int = 0
    """Latency in ns from the end of a transfer until its rows have arrived."""

    def transfer_ns(self, partition: str, rows: int) -> int:
        """Return how long, in ns, the output of `rows` rows of a partition occupies the links."""
        return round(rows * self.bytes_per_row.get(partition, 0) / self.bytes_per_s * NS_PER_S)
