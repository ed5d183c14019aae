"""Tenants of one device, and how they slow each other down: the expected time of a stage, given who else runs there.

A profile says what a stage takes on its share of a device while nobody else uses the rest. NVIDIA MPS divides compute
units only: caches, memory bandwidth and buses stay common, so that a busy neighbor makes the stage longer. What it is
expected to take beside others is `profile.scaled(interference.slowdown(tenant, neighbors)).expected_ns(rows)`.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Tenant(msgspec.Struct, frozen=True):
    """One batch of a partition that runs on a share of a device, or of a MIG instance."""

    partition: str
    rows: int
    percent: float = 100
    """The percentage of the compute units that it may use: `Mps.percent`, 100 without MPS."""


class Interference(Protocol):
    """How the tenants of one device slow each other down.

    Implementations hold no clock and draw nothing: simulator, planners and controllers ask one and the same.
    """

    def slowdown(self, tenant: Tenant, neighbors: Iterable[Tenant]) -> float:
        """How many times as long a batch takes beside these as it takes alone on the same share.

        At least 1, which it is beside none; a further neighbor never makes it smaller. Raises KeyError for a partition
        that is not known.
        """
