"""Latency profile of a partition: expected latency for throughput, and a high quantile for deadlines."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import ge, gt
from typing import Self

import msgspec

NS_PER_MS = 1_000_000
MAX_SURPRISE_FACTOR = 2
"""Maximum ratio between an expected latency and the true one, in either direction."""
EFFICIENT_COST_RATIO = 1.02
"""Maximum ratio between the latency per row of an efficient batch and the best one; measured tables are not smooth."""
EVERY_SIZE_TO, SIZES_PER_DOUBLING = 256, 32
"""A table lists every batch size up to the first number of rows, and the second number of sizes per doubling above it.
"""

ProfileKey = tuple[str, str, str]
"""Key of a profile: (partition, device class, shape)."""


def ms_to_ns(milliseconds: float) -> int:
    """Convert milliseconds, the unit of files and flags, to nanoseconds, the unit of this package."""
    return round(milliseconds * NS_PER_MS)


class Profile(msgspec.Struct, frozen=True):
    """Latency of one partition on one device class, for requests of one shape, by rows.

    `expected_ns` is the mean latency of a batch: use it for throughput, e.g. whether a larger batch pays. `upper_ns` is
    a high quantile (`Policy.quantile`): use it for deadlines.

    Look-up and inversion are fast. Between the listed batch sizes the latency is interpolated linearly.
    """

    partition: str
    device_class: str
    expected: tuple[int, ...]
    """Expected latency in ns by batch size, positive, non-decreasing."""
    planned: tuple[int, ...] = ()
    """Upper latency in ns by batch size, at least the expected one, non-decreasing; empty: equal to it."""
    shape: str = ""
    """Shape of the requests (`Request.shape`). Empty: requests without one, and the start for a new shape."""
    sizes: tuple[int, ...] = ()
    """Batch sizes of the tables in rows, ascending from 1; empty: every size."""

    def __post_init__(self) -> None:
        """Refuse tables that no scheduler could use."""
        sizes = self.sizes
        if sizes and (len(sizes) != len(self.expected) or sizes[0] != 1 or any(map(ge, sizes, sizes[1:]))):
            raise ValueError(f"profile of {self.partition!r}: its batch sizes must rise from 1, one for each latency")
        if len(sizes) == self.max_rows:
            msgspec.structs.force_setattr(self, "sizes", ())
        for table_ns in (self.expected, self.planned or self.expected):
            if not table_ns or table_ns[0] <= 0:
                raise ValueError(f"profile of {self.partition!r}: latencies must be given and positive")
            if any(map(gt, table_ns, table_ns[1:])):
                raise ValueError(f"profile of {self.partition!r}: latency must not fall as rows grow")
        if not self.planned:
            msgspec.structs.force_setattr(self, "planned", self.expected)
        elif len(self.planned) != len(self.expected):
            raise ValueError(f"profile of {self.partition!r}: what is planned must be given for as many rows")

    @classmethod
    def linear(
        cls,
        partition: str,
        *,
        alpha_ms: float,
        beta_ms: float,
        max_rows: int,
        device_class: str = "default",
        shape: str = "",
    ) -> Self:
        """Create the profile `l(b) = alpha*b + beta` (Symphony, section 2.1) of a partition on a device class.

        `alpha_ms`: latency of each row; `beta_ms`: fixed latency of a batch, both in ms. `max_rows`: largest batch.
        `shape`: shape of the requests; empty: any.
        """
        sizes = sizes_up_to(max_rows)
        table_ns = tuple(ms_to_ns(alpha_ms * rows + beta_ms) for rows in sizes)
        return cls(partition, device_class, table_ns, shape=shape, sizes=sizes)

    @classmethod
    def from_table(cls, partition: str, table_ns: Sequence[int], *, device_class: str = "default") -> Self:
        """Create the profile of a partition on a device class from the latency of batches of 1, 2, 3, ... rows.

        `table_ns[rows - 1]` is the latency in ns of a batch of `rows` rows.
        """
        sizes = sizes_up_to(len(table_ns))
        return cls(partition, device_class, tuple(table_ns[rows - 1] for rows in sizes), sizes=sizes)

    @classmethod
    def from_points(
        cls,
        partition: str,
        expected_ms: Mapping[int, float],
        upper_ms: Mapping[int, float] | None = None,
        *,
        max_rows: int,
        device_class: str = "default",
        shape: str = "",
    ) -> Self:
        """Create the profile of a partition on a device class through measured latencies {rows: ms}.

        Latencies are interpolated linearly and made monotone. Beyond the largest point the last slope continues; below
        the smallest the first value holds. `expected_ms`: mean latency. `upper_ms`: the high quantile, if measured.
        `max_rows`: largest batch of the profile. `shape`: shape of the requests; empty: any.
        """
        sizes = sizes_up_to(max_rows)
        expected = _through(partition, expected_ms, sizes)
        planned = _through(partition, upper_ms, sizes) if upper_ms else expected
        return cls(partition, device_class, expected, tuple(map(max, expected, planned)), shape, sizes)

    @classmethod
    def quickest(cls, profiles: Iterable[Self]) -> Self:
        """Return the pointwise minimum of profiles, by rows; a single profile unchanged. Raises ValueError for none."""
        return cls._combined(profiles, min, "quickest")

    @classmethod
    def slowest(cls, profiles: Iterable[Self]) -> Self:
        """Return the pointwise maximum of profiles, by rows; a single profile unchanged. Raises ValueError for none."""
        return cls._combined(profiles, max, "slowest")

    @classmethod
    def in_sequence(cls, profiles: Iterable[Self], max_rows: int) -> Self:
        """Return the profile of running all of these one after the other, up to `max_rows` rows.

        Raises ValueError for none.
        """
        listed = list(profiles)
        if not listed:
            raise ValueError("no profiles are given")
        sizes = sizes_up_to(max_rows)
        return cls(
            "+".join(each.partition for each in listed),
            "",
            tuple(sum(each.expected_ns(rows) for each in listed) for rows in sizes),
            tuple(sum(each.upper_ns(rows) for each in listed) for rows in sizes),
            listed[0].shape,
            sizes,
        )

    @classmethod
    def _combined(cls, profiles: Iterable[Self], choose: Callable[[Iterable[int]], int], device_class: str) -> Self:
        first, *others = profiles
        if not others:
            return first
        max_rows = min(first.max_rows, *(other.max_rows for other in others))
        several = [each.up_to(max_rows) for each in (first, *others)]
        expected = map(choose, zip(*(each.expected for each in several), strict=True))
        planned = map(choose, zip(*(each.planned for each in several), strict=True))
        return cls(first.partition, device_class, tuple(expected), tuple(planned), first.shape, several[0].sizes)

    @property
    def key(self) -> ProfileKey:
        """Its partition, device class and shape."""
        return self.partition, self.device_class, self.shape

    @property
    def max_rows(self) -> int:
        """Rows of the largest batch in the tables."""
        return self.sizes[-1] if self.sizes else len(self.expected)

    @property
    def every_size(self) -> Sequence[int]:
        """Batch sizes of the tables in rows, ascending."""
        return self.sizes or range(1, len(self.expected) + 1)

    @property
    def fixed_cost_ns(self) -> float:
        """Fixed latency of a batch in ns (beta of a linear profile); never negative."""
        per_row_ns = (self.expected[-1] - self.expected[0]) / max(1, self.max_rows - 1)
        return max(0.0, self.expected[0] - per_row_ns)

    @property
    def efficient_batch_rows(self) -> int:
        """Rows of the largest efficient batch: no smaller batch needs less time per row; 1 if batching does not pay."""
        per_row_ns = [latency_ns / rows for rows, latency_ns in zip(self.every_size, self.expected, strict=True)]
        enough_ns = EFFICIENT_COST_RATIO * min(per_row_ns)
        if per_row_ns[0] <= enough_ns:
            return 1
        return max(rows for rows, each_ns in zip(self.every_size, per_row_ns, strict=True) if each_ns <= enough_ns)

    def expected_ns(self, rows: int) -> int:
        """Return the expected latency in ns of a batch of `rows` rows. Raises IndexError above `max_rows`."""
        return self._between(self.expected, rows) if self.sizes else self.expected[rows - 1]

    def upper_ns(self, rows: int) -> int:
        """Return the upper latency in ns of a batch of `rows` rows. Raises IndexError above `max_rows`."""
        return self._between(self.planned, rows) if self.sizes else self.planned[rows - 1]

    def lower_bound_ns(self, rows: int) -> int:
        """Return a lower bound, in ns, of the latency of a batch of `rows` rows.

        A request with less time left will miss its deadline.
        """
        return max(1, self.expected_ns(rows) // MAX_SURPRISE_FACTOR)

    def largest_rows_within(self, budget_ns: int) -> int:
        """Return the most rows whose upper latency is at most `budget_ns`; 0 if even one row takes longer."""
        at, sizes = bisect_right(self.planned, budget_ns), self.sizes
        if not sizes:
            return at
        if at in (0, len(sizes)):
            return sizes[at - 1] if at else 0
        below_ns, above_ns = self.planned[at - 1], self.planned[at]
        gap = sizes[at] - sizes[at - 1]
        return sizes[at - 1] + ((budget_ns - below_ns + 1) * gap - 1) // (above_ns - below_ns)

    def corrected(self, slope_ns: float, constant_ns: float, margin_ns: float, margin_share: float = 0.0) -> Self:
        """Return this profile with a straight line added to the expected latency, and a margin above it.

        `slope_ns`: what is added for the largest batch, proportionally less for smaller ones. `constant_ns`: what is
        added for every batch. `margin_ns`: upper minus expected latency. `margin_share`: further margin, as a fraction
        of the expected latency.
        """
        per_row_ns = slope_ns / self.max_rows
        corrected = (
            round(taken_ns + per_row_ns * rows + constant_ns)
            for rows, taken_ns in zip(self.every_size, self.expected, strict=True)
        )
        expected = tuple(accumulate(corrected, max, initial=1))[1:]
        planned = tuple([round(taken_ns + margin_ns + margin_share * taken_ns) for taken_ns in expected])
        return type(self)(self.partition, self.device_class, expected, planned, self.shape, self.sizes)

    def scaled(self, factor: float) -> Self:
        """Return this profile with all latencies multiplied by `factor`."""
        expected, planned = (
            tuple(max(1, round(factor * taken_ns)) for taken_ns in table) for table in (self.expected, self.planned)
        )
        return msgspec.structs.replace(self, expected=expected, planned=planned)

    def with_margin_fraction(self, share: float) -> Self:
        """Return this profile with its margin multiplied by `share`: 0 keeps none, 1 all of it."""
        planned = tuple(
            taken_ns + round(share * (promised_ns - taken_ns))
            for taken_ns, promised_ns in zip(self.expected, self.planned, strict=True)
        )
        return msgspec.structs.replace(self, planned=planned)

    def lower_bound(self) -> Self:
        """Return the profile whose expected and upper latency is `lower_bound_ns`."""
        least = tuple(map(self.lower_bound_ns, self.every_size))
        return msgspec.structs.replace(self, expected=least, planned=least)

    def of_shape(self, shape: str) -> Self:
        """Return this profile for another shape."""
        return msgspec.structs.replace(self, shape=shape)

    def up_to(self, max_rows: int) -> Self:
        """Return this profile for batches of up to `max_rows` rows, at the standard batch sizes."""
        sizes = sizes_up_to(max_rows)
        if self.max_rows == max_rows and self.sizes == (sizes if len(sizes) < max_rows else ()):
            return self
        expected, planned = tuple(map(self.expected_ns, sizes)), tuple(map(self.upper_ns, sizes))
        return msgspec.structs.replace(self, expected=expected, planned=planned, sizes=sizes)

    def _between(self, table_ns: tuple[int, ...], rows: int) -> int:
        """Return the linear interpolation between the two listed sizes around `rows`, rounded down."""
        sizes = self.sizes
        at = bisect_left(sizes, rows)
        if sizes[at] == rows:
            return table_ns[at]
        below, below_ns = sizes[at - 1], table_ns[at - 1]
        return below_ns + (table_ns[at] - below_ns) * (rows - below) // (sizes[at] - below)


@lru_cache(maxsize=64)
def sizes_up_to(max_rows: int) -> tuple[int, ...]:
    """Return the standard batch sizes of a profile with this `max_rows`, in rows, ascending."""
    if max_rows <= EVERY_SIZE_TO:
        return tuple(range(1, max_rows + 1))
    sizes, first = list(range(1, EVERY_SIZE_TO)), EVERY_SIZE_TO
    while first < max_rows:
        sizes += range(first, min(2 * first, max_rows), first // SIZES_PER_DOUBLING)
        first *= 2
    return (*sizes, max_rows)


def _through(partition: str, points_ms: Mapping[int, float], sizes: Iterable[int]) -> tuple[int, ...]:
    """The table in ns, at these sizes, of straight lines through {rows: ms}."""
    if not points_ms:
        raise ValueError(f"profile of {partition!r}: no measured points")
    rows_known = sorted(points_ms)

    def latency_ms(rows: int) -> float:
        above = bisect_right(rows_known, rows)
        if above == 0 or len(rows_known) == 1:
            return points_ms[rows_known[0]]
        left, right = rows_known[min(above, len(rows_known) - 1) - 1], rows_known[min(above, len(rows_known) - 1)]
        slope = (points_ms[right] - points_ms[left]) / (right - left)
        return points_ms[left] + slope * (rows - left)

    return tuple(accumulate((ms_to_ns(latency_ms(rows)) for rows in sizes), max))
