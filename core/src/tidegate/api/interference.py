"""Tenants of one device, and how they slow each other down: the expected time of a stage, given who else runs there.

A profile says what a stage takes on its share of a device while the rest is idle. NVIDIA MPS divides compute
units only: caches, memory bandwidth and buses stay common, so that a busy neighbor makes the stage longer. What it is
expected to take beside others is `profile.scaled(interference.slowdown(tenant, neighbors)).expected_ns(rows)`.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Tenant(msgspec.Struct, frozen=True):
    """A batch of a partition that runs on a share of a GPU or a MIG instance."""

    partition: str
    rows: int
    percent: float = 100
    """Percentage of the compute units that it may use: `Mps.percent`, or 100 without MPS."""


class Interference(Protocol):
    """A model of how batches on one GPU slow each other down.

    Implementations are deterministic and read no clock; simulator, planners and controllers share one.
    """

    def slowdown(self, tenant: Tenant, neighbors: Iterable[Tenant]) -> float:
        """Return how many times longer a batch of `tenant` takes beside `neighbors` than alone on the same share.

        The result is at least 1, equals 1 without neighbors and never falls when a neighbor is added. Raises KeyError
        if a partition is unknown.
        """
