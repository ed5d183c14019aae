"""How long a partition runs: a question with two answers, what it takes and what may be promised."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import ge, gt
from typing import Self

import msgspec

NS_PER_MS = 1_000_000
MAX_SURPRISE_FACTOR = 2
"""What is expected may be wrong by such a factor: of stages that vary, and of what was learned from too few."""
EFFICIENT_COST_RATIO = 1.02
"""How much longer per row a batch may take than the quickest one: measured tables are not smooth."""
EVERY_SIZE_TO, SIZES_PER_DOUBLING = 256, 32
"""A table tells of every batch size up to so many rows, and of so many sizes per doubling above: models of tables and
trees take tens of thousands of rows, and what is learned of them is written anew after every few stages."""

ProfileKey = tuple[str, str, str]
"""What a profile is of: (partition, kind of worker, shape)."""


def ms_to_ns(milliseconds: float) -> int:
    """Convert milliseconds, the unit of files and flags, into nanoseconds, the unit of the contract."""
    return round(milliseconds * NS_PER_MS)


class Profile(msgspec.Struct, frozen=True):
    """How long one partition runs on one kind of worker, for requests of one shape, by rows.

    Latency is a question with two answers. `expected_ns` is what a batch takes, its centre: the base of decisions about
    throughput, such as whether a larger batch is worth forming. `upper_ns` is what may be promised, a high quantile
    of it (`Policy.quantile`): the base of decisions about deadlines.

    The tables inside are how it is kept, and nobody else's business: looking up and inverting is what schedulers do
    most. Between the sizes that they tell of lie straight lines.
    """

    partition: str
    kind: str
    expected: tuple[int, ...]
    """Nanoseconds by batch size, positive, never falling with rows."""
    planned: tuple[int, ...] = ()
    """Nanoseconds by batch size, never below what is expected, never falling; empty: as expected."""
    shape: str = ""
    """The shape of the requests (`Request.shape`). Empty: of those without one, and where a new shape starts from."""
    sizes: tuple[int, ...] = ()
    """The batch sizes that the tables tell of, in rows, rising from 1; empty: every one."""

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
        cls, partition: str, *, alpha_ms: float, beta_ms: float, max_rows: int, kind: str = "default", shape: str = ""
    ) -> Self:
        """`l(b) = alpha*b + beta` (Symphony, section 2.1), in milliseconds."""
        sizes = sizes_up_to(max_rows)
        table_ns = tuple(ms_to_ns(alpha_ms * rows + beta_ms) for rows in sizes)
        return cls(partition, kind, table_ns, shape=shape, sizes=sizes)

    @classmethod
    def from_table(cls, partition: str, table_ns: Sequence[int], *, kind: str = "default") -> Self:
        """A profile of what batches of 1, 2, 3 and so on rows take, `table_ns[rows - 1]`, however many those are."""
        sizes = sizes_up_to(len(table_ns))
        return cls(partition, kind, tuple(table_ns[rows - 1] for rows in sizes), sizes=sizes)

    @classmethod
    def from_points(
        cls,
        partition: str,
        expected_ms: Mapping[int, float],
        upper_ms: Mapping[int, float] | None = None,
        *,
        max_rows: int,
        kind: str = "default",
        shape: str = "",
    ) -> Self:
        """A profile through measured latencies {rows: ms}: straight lines between them, made monotone.

        Beyond the largest point the last slope goes on; below the smallest the first value holds. `upper_ms`: where
        it was measured, too.
        """
        sizes = sizes_up_to(max_rows)
        expected = _through(partition, expected_ms, sizes)
        planned = _through(partition, upper_ms, sizes) if upper_ms else expected
        return cls(partition, kind, expected, tuple(map(max, expected, planned)), shape, sizes)

    @classmethod
    def quickest(cls, profiles: Iterable[Self]) -> Self:
        """What the quickest of these takes, by rows; the only one itself. Raises ValueError for none."""
        return cls._combined(profiles, min, "quickest")

    @classmethod
    def slowest(cls, profiles: Iterable[Self]) -> Self:
        """What the slowest of these takes, by rows; the only one itself. Raises ValueError for none."""
        return cls._combined(profiles, max, "slowest")

    @classmethod
    def in_sequence(cls, profiles: Iterable[Self], max_rows: int) -> Self:
        """What all of these take one after the other, for up to `max_rows` rows. Raises ValueError for none."""
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
    def _combined(cls, profiles: Iterable[Self], choose: Callable[[Iterable[int]], int], kind: str) -> Self:
        first, *others = profiles
        if not others:
            return first
        max_rows = min(first.max_rows, *(other.max_rows for other in others))
        several = [each.up_to(max_rows) for each in (first, *others)]
        expected = map(choose, zip(*(each.expected for each in several), strict=True))
        planned = map(choose, zip(*(each.planned for each in several), strict=True))
        return cls(first.partition, kind, tuple(expected), tuple(planned), first.shape, several[0].sizes)

    @property
    def key(self) -> ProfileKey:
        """The partition, kind of worker and shape that it is of."""
        return self.partition, self.kind, self.shape

    @property
    def max_rows(self) -> int:
        """The rows of the largest batch that it tells of."""
        return self.sizes[-1] if self.sizes else len(self.expected)

    @property
    def every_size(self) -> Sequence[int]:
        """The batch sizes that its tables tell of, in rows, rising: all up to `max_rows`, or enough of them."""
        return self.sizes or range(1, len(self.expected) + 1)

    @property
    def fixed_cost_ns(self) -> float:
        """What a batch costs besides its rows: beta, where the profile is a straight line; never negative."""
        per_row_ns = (self.expected[-1] - self.expected[0]) / max(1, self.max_rows - 1)
        return max(0.0, self.expected[0] - per_row_ns)

    @property
    def efficient_batch_rows(self) -> int:
        """The largest batch that is worth forming: no smaller one takes less per row; 1 where one row takes no more."""
        per_row_ns = [latency_ns / rows for rows, latency_ns in zip(self.every_size, self.expected, strict=True)]
        enough_ns = EFFICIENT_COST_RATIO * min(per_row_ns)
        if per_row_ns[0] <= enough_ns:
            return 1
        return max(rows for rows, each_ns in zip(self.every_size, per_row_ns, strict=True) if each_ns <= enough_ns)

    def expected_ns(self, rows: int) -> int:
        """What a batch of so many rows takes. Raises IndexError above `max_rows`."""
        return self._between(self.expected, rows) if self.sizes else self.expected[rows - 1]

    def upper_ns(self, rows: int) -> int:
        """What may be promised of a batch of so many rows. Raises IndexError above `max_rows`."""
        return self._between(self.planned, rows) if self.sizes else self.planned[rows - 1]

    def lower_bound_ns(self, rows: int) -> int:
        """What a batch of so many rows takes at least, as far as anybody can exclude: who has less time is lost."""
        return max(1, self.expected_ns(rows) // MAX_SURPRISE_FACTOR)

    def largest_rows_within(self, budget_ns: int) -> int:
        """The most rows of which may be promised that they finish within the budget; 0 where not even one does."""
        at, sizes = bisect_right(self.planned, budget_ns), self.sizes
        if not sizes:
            return at
        if at in (0, len(sizes)):
            return sizes[at - 1] if at else 0
        below_ns, above_ns = self.planned[at - 1], self.planned[at]
        gap = sizes[at] - sizes[at - 1]
        return sizes[at - 1] + ((budget_ns - below_ns + 1) * gap - 1) // (above_ns - below_ns)

    def corrected(self, slope_ns: float, constant_ns: float, margin_ns: float, margin_share: float = 0.0) -> Self:
        """This profile with a straight line added to what is expected, and a margin to what is planned besides.

        `slope_ns`: what the largest batch takes longer besides the constant, and smaller ones in proportion.
        `margin_share`: a further margin, as a share of what is then expected.
        """
        per_row_ns = slope_ns / self.max_rows
        corrected = (
            round(taken_ns + per_row_ns * rows + constant_ns)
            for rows, taken_ns in zip(self.every_size, self.expected, strict=True)
        )
        expected = tuple(accumulate(corrected, max, initial=1))[1:]
        planned = tuple([round(taken_ns + margin_ns + margin_share * taken_ns) for taken_ns in expected])
        return type(self)(self.partition, self.kind, expected, planned, self.shape, self.sizes)

    def scaled(self, factor: float) -> Self:
        """This profile with everything taking so many times as long."""
        expected, planned = (
            tuple(max(1, round(factor * taken_ns)) for taken_ns in table) for table in (self.expected, self.planned)
        )
        return msgspec.structs.replace(self, expected=expected, planned=planned)

    def with_margin_fraction(self, share: float) -> Self:
        """This profile promising what is expected and a share of its margin: 0 is what is expected, 1 the profile."""
        planned = tuple(
            taken_ns + round(share * (promised_ns - taken_ns))
            for taken_ns, promised_ns in zip(self.expected, self.planned, strict=True)
        )
        return msgspec.structs.replace(self, planned=planned)

    def lower_bound(self) -> Self:
        """A profile that expects and promises what nobody can exclude: `lower_bound_ns`."""
        least = tuple(map(self.lower_bound_ns, self.every_size))
        return msgspec.structs.replace(self, expected=least, planned=least)

    def of_shape(self, shape: str) -> Self:
        """The same, said of another shape."""
        return msgspec.structs.replace(self, shape=shape)

    def up_to(self, max_rows: int) -> Self:
        """The same of batches of up to `max_rows` only, at the sizes that any profile of so many tells of."""
        sizes = sizes_up_to(max_rows)
        if self.max_rows == max_rows and self.sizes == (sizes if len(sizes) < max_rows else ()):
            return self
        expected, planned = tuple(map(self.expected_ns, sizes)), tuple(map(self.upper_ns, sizes))
        return msgspec.structs.replace(self, expected=expected, planned=planned, sizes=sizes)

    def _between(self, table_ns: tuple[int, ...], rows: int) -> int:
        """What lies on the straight line between the two sizes nearest to this one, rounded down."""
        sizes = self.sizes
        at = bisect_left(sizes, rows)
        if sizes[at] == rows:
            return table_ns[at]
        below, below_ns = sizes[at - 1], table_ns[at - 1]
        return below_ns + (table_ns[at] - below_ns) * (rows - below) // (sizes[at] - below)


@lru_cache(maxsize=64)
def sizes_up_to(max_rows: int) -> tuple[int, ...]:
    """The batch sizes that the profile of a model tells of which takes up to `max_rows`, in rows, rising."""
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
