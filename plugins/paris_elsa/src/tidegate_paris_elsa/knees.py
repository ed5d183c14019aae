"""Knees: number of rows from which a slice is saturated, so that more rows only take longer (PARIS, step A)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from tidegate_paris_elsa.problem import SliceProfile

KneeSource = Literal["utilization", "latency", "slo"]
"""Method that found a knee; `slo`: larger requests would be late."""


def knee_of(profile: SliceProfile, *, utilization: float, gain: float) -> tuple[int, KneeSource]:
    """Return the rows at which a slice's utilization, or its throughput, saturates, and the method that found them.

    By utilization, if it was measured: the first rows with the fraction `utilization` of the slice's own maximum
    (overhead of the host keeps some maxima below 1). Otherwise the first rows for which twice as many bring less than
    the relative gain `gain` in throughput. If there are none, the largest measured number.
    """
    if profile.utilization is not None:
        enough = utilization * max(profile.utilization)
        measured = zip(profile.rows, profile.utilization, strict=True)
        return next(rows for rows, used in measured if used >= enough), "utilization"
    for rows in profile.rows:
        if 2 * rows > profile.rows[-1]:
            break
        throughput, doubled = rows / latency_ms(profile, rows), 2 * rows / latency_ms(profile, 2 * rows)
        if doubled < (1 + gain) * throughput:
            return rows, "latency"
    return profile.rows[-1], "latency"


def latency_ms(profile: SliceProfile, rows: int) -> float:
    """Return the latency in ms of a request of `rows` rows, interpolated linearly."""
    points = list(zip(profile.rows, profile.latency_ms, strict=True))
    above = next(index for index, known in enumerate(profile.rows) if known >= rows)
    right, right_ms = points[above]
    if right == rows or above == 0:
        return right_ms
    left, left_ms = points[above - 1]
    return left_ms + (right_ms - left_ms) * (rows - left) / (right - left)


def segments_of(knees: Sequence[int], most_rows: int) -> list[tuple[int, int]]:
    """Return the segments (B_{k-1} + 1, B_k) of slices from small to large; the last ends at `most_rows`.

    Some may be empty.
    """
    ends = [min(end, most_rows) for end in accumulate(knees, max)]
    ends[-1] = most_rows
    return [(before + 1, end) for before, end in zip([0, *ends], ends, strict=False)]
