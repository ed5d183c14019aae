"""The interference file: latency of models on shares of one GPU, and their slowdown by neighbors there.

`tidegate fit-interference` writes it from measured runs. The model is that of InSS, section 4: a batch takes

    transfer + gpu * (1 + sum over neighbors (cache * l + dram * e + neighbor))

where `transfer + gpu` is its latency alone on its share, bus and compute; `l` and `e` are the percentages of the
bandwidth of L2 cache and DRAM that the neighbor uses alone, linear in its throughput; `cache`, `dram` and `neighbor`
are the sensitivities of the batch's model. No coefficient is negative: a neighbor never makes a batch faster.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import exp, log
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from tidegate.api import Profile, VersionedDocument, ms_to_ns
from tidegate.api.interference import Tenant
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import Name

Positive = Annotated[float, Field(gt=0, lt=1e9)]
NonNegative = Annotated[float, Field(ge=0, lt=1e9)]
Percent = Annotated[float, Field(gt=0, le=100)]


class ShareTable(DocumentSection):
    """Compute time of one model alone on shares of a GPU: milliseconds by rows and percentage of the compute units."""

    rows: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    percents: tuple[Percent, ...] = Field(min_length=1)
    taken_ms: tuple[tuple[Positive, ...], ...]
    """Compute time in ms: `taken_ms[i][j]` is that of a batch of `rows[i]` rows on `percents[j]` of the GPU."""

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        for name, axis in (("rows", self.rows), ("percents", self.percents)):
            if any(later <= earlier for earlier, later in pairwise(axis)):
                raise ValueError(f"{name}: must rise")
        size = f"{len(self.rows)} lists (one for each of rows) of {len(self.percents)} (one for each of percents)"
        if len(self.taken_ms) != len(self.rows) or any(len(row) != len(self.percents) for row in self.taken_ms):
            raise ValueError(f"taken_ms: must be {size}")
        if any(later > earlier for row in self.taken_ms for earlier, later in pairwise(row)):
            raise ValueError("taken_ms: a larger share must not take longer")
        columns = zip(*self.taken_ms, strict=True)
        if any(later < earlier for column in columns for earlier, later in pairwise(column)):
            raise ValueError("taken_ms: a larger batch must not take less")
        return self

    def at(self, rows: int, percent: float) -> float:
        """Return the compute time of a batch in ms, interpolated linearly on logarithmic axes.

        `percent`: percentage of the compute units. Beyond the table, time per row stays that of the largest batch, a
        smaller share takes longer in proportion, and a larger one is not faster.
        """
        beyond = max(1.0, rows / self.rows[-1]) * max(1.0, self.percents[0] / percent)
        above, by_rows = _between(self.rows, rows)
        right, by_percent = _between(self.percents, percent)

        def along(table: Sequence[float]) -> float:
            return (1 - by_percent) * log(table[right - 1]) + by_percent * log(table[right])

        few, more = along(self.taken_ms[above - 1]), along(self.taken_ms[above])
        return beyond * exp((1 - by_rows) * few + by_rows * more)


class NonDecreasingLine(DocumentSection):
    """A straight line that does not fall."""

    base: NonNegative = 0.0
    slope: NonNegative = 0.0

    def at(self, where: float) -> float:
        """Return the value of the line at `where`."""
        return self.base + self.slope * where


class Sensitivity(DocumentSection):
    """Sensitivity of a model to its neighbors: relative increase of its compute time."""

    cache: NonNegative = 0.0
    """Increase for each percent of the L2 cache's bandwidth that a neighbor uses."""
    dram: NonNegative = 0.0
    """Increase for each percent of the DRAM's bandwidth that a neighbor uses."""
    neighbor: NonNegative = 0.0
    """Increase for each neighbor, whatever it does."""


class SharingModel(DocumentSection):
    """Latency and utilization of one model on shares of the GPU."""

    gpu_ms: ShareTable
    transfer_ms: NonDecreasingLine = NonDecreasingLine()
    """Transfer time to and from the GPU in ms, by rows; neighbors do not slow it down."""
    cache_percent: NonDecreasingLine = NonDecreasingLine()
    """Percentage of the L2 cache's bandwidth that the model uses alone, by rows per second of compute time."""
    dram_percent: NonDecreasingLine = NonDecreasingLine()
    """Percentage of the DRAM's bandwidth that the model uses alone, by rows per second of compute time."""
    sensitivity: Sensitivity = Sensitivity()


class HeldOut(DocumentSection):
    """Relative errors of predictions on held-out runs: |predicted - measured| / measured."""

    runs: Annotated[int, Field(ge=1)]
    mean: NonNegative
    p95: NonNegative


class StandaloneTenant(NamedTuple):
    """Latency and resource use of a tenant by itself."""

    transfer_ms: float
    gpu_ms: float
    cache_percent: float
    dram_percent: float

    @property
    def taken_ms(self) -> float:
        """Total latency in ms, including transfers."""
        return self.transfer_ms + self.gpu_ms


class InterferenceModel(VersionedDocument):
    """Interference model of one GPU product: stand-alone latency of models, and how they slow each other down."""

    kind: Literal["interference"] = "interference"
    gpu: Name
    """Product that was measured, e.g. `V100`; a MIG instance: `A100/3g.20gb`."""
    models: dict[Name, SharingModel] = Field(min_length=1)
    held_out: HeldOut | None = None
    """Errors of the model on held-out runs; None: not measured."""

    @cached_property
    def _known(self) -> dict[Tenant, StandaloneTenant]:
        """Cache of results. (A private attribute of pydantic takes seven times as long to look up.)"""
        return {}

    def alone(self, tenant: Tenant) -> StandaloneTenant:
        """Return latency and resource use of a batch alone on its share. Raises KeyError for an unknown model."""
        known = self._known.get(tenant)
        if known is None:
            model = self.models[tenant.partition]
            gpu_ms = model.gpu_ms.at(tenant.rows, tenant.percent)
            rows_per_s = 1000 * tenant.rows / gpu_ms
            cache, dram = model.cache_percent.at(rows_per_s), model.dram_percent.at(rows_per_s)
            known = self._known[tenant] = StandaloneTenant(model.transfer_ms.at(tenant.rows), gpu_ms, cache, dram)
        return known

    def expected_ms(self, tenant: Tenant, neighbors: Iterable[Tenant]) -> float:
        """Return the latency in ms of a batch beside these neighbors. Raises KeyError for an unknown model."""
        mine, sensitivity = self.alone(tenant), self.models[tenant.partition].sensitivity
        added = 0.0
        for theirs in map(self.alone, neighbors):
            added += sensitivity.cache * theirs.cache_percent + sensitivity.dram * theirs.dram_percent
            added += sensitivity.neighbor
        return mine.transfer_ms + mine.gpu_ms * (1 + added)

    def slowdown(self, tenant: Tenant, neighbors: Iterable[Tenant]) -> float:
        """Return how many times longer a batch takes beside these neighbors than alone; exactly 1 without any."""
        return self.expected_ms(tenant, neighbors) / self.alone(tenant).taken_ms

    def profile(
        self, model: str, percent: float, *, max_rows: int, device_class: str, neighbors: Iterable[Tenant] = ()
    ) -> Profile:
        """Return the profile of a model on a share, beside neighbors that are always busy.

        `percent`: of the compute units; `max_rows`: largest batch; `device_class`: class of the profile. Raises
        KeyError for an unknown model.
        """
        beside = tuple(neighbors)
        tenants = (Tenant(model, rows, percent) for rows in range(1, max_rows + 1))
        taken_ns = accumulate((ms_to_ns(self.expected_ms(tenant, beside)) for tenant in tenants), max)
        return Profile(model, device_class, tuple(taken_ns))

    def lacks(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the given models that the file lacks."""
        return tuple(sorted(set(names) - self.models.keys()))


def _between(axis: Sequence[float], value: float) -> tuple[int, float]:
    """Where a value lies on a rising axis: the entry at or above it, and how far from the one before; ends hold."""
    if len(axis) == 1:
        return 0, 1.0
    above = min(max(1, bisect_left(axis, value)), len(axis) - 1)
    share = (log(value) - log(axis[above - 1])) / (log(axis[above]) - log(axis[above - 1]))
    return above, min(1.0, max(0.0, share))
