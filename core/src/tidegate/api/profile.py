"""How long a partition runs: a question with two answers, what it takes and what may be promised."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from operator import gt
from typing import Self

import msgspec

NS_PER_MS = 1_000_000
SURPRISE = 2
"""What is expected may be wrong by such a factor: of legs that vary, and of what was learned from too few."""
WORTHWHILE = 1.02
"""How much longer per row a batch may take than the quickest one: measured tables are not smooth."""

ProfileKey = tuple[str, str, str]
"""What a profile is of: (partition, kind of worker, shape)."""


def ms_to_ns(milliseconds: float) -> int:
    """Convert milliseconds, the unit of files and flags, into nanoseconds, the unit of the contract."""
    return round(milliseconds * NS_PER_MS)


class Profile(msgspec.Struct, frozen=True):
    """How long one partition runs on one kind of worker, for requests of one shape, by rows.

    Latency is a question with two answers. `expected_ns` is what a batch takes, its centre: the base of decisions about
    throughput, such as whether a larger batch is worth forming. `planned_ns` is what may be promised, a high quantile
    of it (`Policy.quantile`): the base of decisions about deadlines.

    The tables inside are how it is kept, and nobody else's business: looking up and inverting is what schedulers do
    most.
    """

    partition: str
    kind: str
    expected: tuple[int, ...]
    """`expected[rows - 1]`: nanoseconds, positive, never falling with rows."""
    planned: tuple[int, ...] = ()
    """`planned[rows - 1]`: nanoseconds, never below what is expected, never falling; empty: as expected."""
    shape: str = ""
    """The shape of the requests (`Request.shape`). Empty: of those without one, and where a new shape starts from."""

    def __post_init__(self) -> None:
        """Refuse tables that no scheduler could use."""
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
        table_ns = tuple(ms_to_ns(alpha_ms * rows + beta_ms) for rows in range(1, max_rows + 1))
        return cls(partition, kind, table_ns, shape=shape)

    @classmethod
    def from_points(
        cls,
        partition: str,
        expected_ms: Mapping[int, float],
        planned_ms: Mapping[int, float] | None = None,
        *,
        max_rows: int,
        kind: str = "default",
        shape: str = "",
    ) -> Self:
        """A profile through measured latencies {rows: ms}: straight lines between them, made monotone.

        Beyond the largest point the last slope goes on; below the smallest the first value holds. `planned_ms`: where
        it was measured, too.
        """
        expected = _through(partition, expected_ms, max_rows)
        planned = _through(partition, planned_ms, max_rows) if planned_ms else expected
        return cls(partition, kind, expected, tuple(map(max, expected, planned)), shape)

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
        return cls(
            "+".join(each.partition for each in listed),
            "",
            tuple(sum(each.expected[at] for each in listed) for at in range(max_rows)),
            tuple(sum(each.planned[at] for each in listed) for at in range(max_rows)),
            listed[0].shape,
        )

    @classmethod
    def _combined(cls, profiles: Iterable[Self], choose: Callable[[Iterable[int]], int], kind: str) -> Self:
        first, *others = profiles
        if not others:
            return first
        expected = map(choose, zip(first.expected, *(other.expected for other in others), strict=False))
        planned = map(choose, zip(first.planned, *(other.planned for other in others), strict=False))
        return cls(first.partition, kind, tuple(expected), tuple(planned), first.shape)

    @property
    def key(self) -> ProfileKey:
        """The partition, kind of worker and shape that it is of."""
        return self.partition, self.kind, self.shape

    @property
    def max_rows(self) -> int:
        """The rows of the largest batch that it tells of."""
        return len(self.expected)

    @property
    def fixed_cost_ns(self) -> float:
        """What a batch costs besides its rows: beta, where the profile is a straight line; never negative."""
        per_row_ns = (self.expected[-1] - self.expected[0]) / max(1, self.max_rows - 1)
        return max(0.0, self.expected[0] - per_row_ns)

    @property
    def worthwhile_rows(self) -> int:
        """The largest batch that is worth forming: no smaller one takes less per row; 1 where one row takes no more."""
        per_row_ns = [latency_ns / rows for rows, latency_ns in enumerate(self.expected, 1)]
        enough_ns = WORTHWHILE * min(per_row_ns)
        if per_row_ns[0] <= enough_ns:
            return 1
        return max(rows for rows, each_ns in enumerate(per_row_ns, 1) if each_ns <= enough_ns)

    def expected_ns(self, rows: int) -> int:
        """What a batch of so many rows takes. Raises IndexError above `max_rows`."""
        return self.expected[rows - 1]

    def planned_ns(self, rows: int) -> int:
        """What may be promised of a batch of so many rows. Raises IndexError above `max_rows`."""
        return self.planned[rows - 1]

    def least_ns(self, rows: int) -> int:
        """What a batch of so many rows takes at least, as far as anybody can exclude: who has less time is lost."""
        return max(1, self.expected[rows - 1] // SURPRISE)

    def largest_rows_within(self, budget_ns: int) -> int:
        """The most rows of which may be promised that they finish within the budget; 0 where not even one does."""
        return bisect_right(self.planned, budget_ns)

    def corrected(self, slope_ns: float, constant_ns: float, margin_ns: float, margin_share: float = 0.0) -> Self:
        """This profile with a straight line added to what is expected, and a margin to what is planned besides.

        `slope_ns`: what the largest batch takes longer besides the constant, and smaller ones in proportion.
        `margin_share`: a further margin, as a share of what is then expected.
        """
        per_row_ns = slope_ns / self.max_rows
        corrected = (
            round(taken_ns + per_row_ns * rows + constant_ns) for rows, taken_ns in enumerate(self.expected, 1)
        )
        expected = tuple(accumulate(corrected, max, initial=1))[1:]
        planned = tuple([round(taken_ns + margin_ns + margin_share * taken_ns) for taken_ns in expected])
        return type(self)(self.partition, self.kind, expected, planned, self.shape)

    def scaled(self, factor: float) -> Self:
        """This profile with everything taking so many times as long."""
        expected, planned = (
            tuple(max(1, round(factor * taken_ns)) for taken_ns in table) for table in (self.expected, self.planned)
        )
        return msgspec.structs.replace(self, expected=expected, planned=planned)

    def with_margin(self, share: float) -> Self:
        """This profile promising what is expected and a share of its margin: 0 is what is expected, 1 the profile."""
        planned = tuple(
            taken_ns + round(share * (promised_ns - taken_ns))
            for taken_ns, promised_ns in zip(self.expected, self.planned, strict=True)
        )
        return msgspec.structs.replace(self, planned=planned)

    def at_least(self) -> Self:
        """A profile that expects and promises what nobody can exclude: `least_ns`."""
        least = tuple(map(self.least_ns, range(1, self.max_rows + 1)))
        return msgspec.structs.replace(self, expected=least, planned=least)

    def of_shape(self, shape: str) -> Self:
        """The same, said of another shape."""
        return msgspec.structs.replace(self, shape=shape)


def _through(partition: str, points_ms: Mapping[int, float], max_rows: int) -> tuple[int, ...]:
    """The table in ns of straight lines through {rows: ms}."""
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

    return tuple(accumulate((ms_to_ns(latency_ms(rows)) for rows in range(1, max_rows + 1)), max))
