"""How long a partition is expected to run, by rows."""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Self

import msgspec

NS_PER_MS = 1_000_000
WORTHWHILE = 1.02
"""A batch may take so much longer per row than the quickest: measured tables are not smooth."""


def ms_to_ns(milliseconds: float) -> int:
    """Milliseconds, the unit of files and flags, as nanoseconds, the unit of the contract."""
    return round(milliseconds * NS_PER_MS)


class Profile(msgspec.Struct, frozen=True):
    """Expected latency of one partition on one kind of worker for every batch size.

    A table rather than a formula: looking up and inverting it is what schedulers do most.
    """

    partition: str
    kind: str
    table_ns: tuple[int, ...]
    """`table_ns[rows - 1]`: nanoseconds, positive, never falling with rows."""
    margin_ns: int = 0
    """How much of each latency is no work but caution: legs scatter, and late is late."""

    def __post_init__(self) -> None:
        """Refuse a table that no scheduler could use."""
        if not self.table_ns or self.table_ns[0] <= 0:
            raise ValueError(f"profile of {self.partition!r}: latencies must be given and positive")
        if any(later < earlier for earlier, later in zip(self.table_ns, self.table_ns[1:], strict=False)):
            raise ValueError(f"profile of {self.partition!r}: latency must not fall as rows grow")

    @classmethod
    def linear(cls, partition: str, *, alpha_ms: float, beta_ms: float, max_rows: int, kind: str = "default") -> Self:
        """`l(b) = alpha*b + beta` (Symphony, section 2.1), in milliseconds."""
        return cls(partition, kind, tuple(ms_to_ns(alpha_ms * rows + beta_ms) for rows in range(1, max_rows + 1)))

    @classmethod
    def from_points(
        cls, partition: str, points_ms: Mapping[int, float], *, max_rows: int, kind: str = "default"
    ) -> Self:
        """From measured latencies {rows: ms}: straight lines between them, made monotone.

        Beyond the largest point the last slope goes on; below the smallest the first value holds.
        """
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

        table = accumulate((ms_to_ns(latency_ms(rows)) for rows in range(1, max_rows + 1)), max)
        return cls(partition, kind, tuple(table))

    @property
    def max_rows(self) -> int:
        """The largest batch that the table knows."""
        return len(self.table_ns)

    @property
    def fixed_cost_ns(self) -> float:
        """What a batch costs besides its rows: beta, where the profile is a straight line; never negative."""
        per_row_ns = (self.table_ns[-1] - self.table_ns[0]) / max(1, self.max_rows - 1)
        return max(0.0, self.table_ns[0] - self.margin_ns - per_row_ns)

    @property
    def worthwhile_rows(self) -> int:
        """The largest batch that is worth forming: no smaller one takes less per row; 1 where one row takes no more."""
        per_row_ns = [max(1, latency_ns - self.margin_ns) / rows for rows, latency_ns in enumerate(self.table_ns, 1)]
        enough_ns = WORTHWHILE * min(per_row_ns)
        if per_row_ns[0] <= enough_ns:
            return 1
        return max(rows for rows, each_ns in enumerate(per_row_ns, 1) if each_ns <= enough_ns)

    def latency_ns(self, rows: int) -> int:
        """Expected latency of `rows` rows. Raises IndexError above `max_rows`."""
        return self.table_ns[rows - 1]

    def largest_rows_within(self, budget_ns: int) -> int:
        """The most rows that are expected to finish within the budget; 0 where not even one does."""
        return bisect_right(self.table_ns, budget_ns)
