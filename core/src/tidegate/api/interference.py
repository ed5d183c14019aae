"""Interference between batches on one device: the expected latency of a stage, given what else runs there.

A profile gives the latency of a stage on its MPS share while the rest of the device is idle. NVIDIA MPS divides compute
units only: caches, memory bandwidth and buses are shared, so a busy neighbor slows the stage down. The expected latency
beside neighbors is `profile.scaled(interference.slowdown(tenant, neighbors)).expected_ns(rows)`.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Tenant(msgspec.Struct, frozen=True):
    """A batch of a partition that runs on a share of a GPU or a MIG instance."""

    partition: str
    rows: int
    percent: float = 100
    """Percentage of the compute units that the batch may use: `Mps.percent`, or 100 without MPS."""


class Interference(Protocol):
    """A model of how batches on one GPU slow each other down.

    Implementations are deterministic and read no clock; simulator, planners and controllers share one.
    """

    def slowdown(self, tenant: Tenant, neighbors: Iterable[Tenant]) -> float:
        """Return how many times longer a batch of `tenant` takes beside `neighbors` than alone on the same share.

        The result is at least 1, equals 1 without neighbors and never falls when a neighbor is added. Raises KeyError
        if a partition is unknown.
        """
