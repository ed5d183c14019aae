"""Profiles corrected by what is observed: least squares on the residual, newer observations weighing more.

For each (partition, kind) the planned latency is `base(rows) + a*rows + c + margin*spread`: the base profile, a learned
linear correction, and a margin of mean absolute deviations, since schedulers need a high estimate. With a linear base
this re-learns alpha and beta; with a measured table it keeps the table's shape.
"""

from itertools import accumulate

from tidegate.api import Profile

FORGETTING = 0.98
"""Weight of an observation after each later one: the last fifty or so decide."""
RIDGE = 0.1
"""Observations that the prior (no correction) is worth: it decides where all batches had one size."""
MARGIN = 2.0
"""Mean absolute deviations added to the mean: about the 95th percentile of a normal distribution."""
SPREAD_GAIN = 0.05
TOLERANCE = 0.02
"""A profile is published anew when it moved by this share: less would only disturb schedulers."""
PUBLISH_EVERY = 8
"""Observations between two looks at whether it moved."""


class ProfileLearner:
    """Keeps one (partition, kind) honest."""

    def __init__(self, base: Profile) -> None:
        self._base = base
        self._published = base
        self._seen = 0
        self._slope = self._offset = 0.0  # the correction a (per share of max_rows) and c, in ns
        self._spread_ns = 0.0
        self._w = self._x = self._xx = self._r = self._xr = 0.0  # weighted sums over observations

    def observe(self, rows: int, duration_ns: int) -> Profile | None:
        """Take in one leg; returns the corrected profile when it has moved enough to be worth telling."""
        x = rows / self._base.max_rows
        correction = self._slope * x + self._offset
        expected_ns = self._base.latency_ns(rows) + correction
        surprise = duration_ns - expected_ns
        if self._seen >= PUBLISH_EVERY:
            # One hiccup (a page fault, a compilation) must not teach a latency that will not come again.
            bound = 4 * self._spread_ns + 0.05 * expected_ns
            surprise = max(-bound, min(bound, surprise))
        self._spread_ns += max(SPREAD_GAIN, 1 / (self._seen + 1)) * (abs(surprise) - self._spread_ns)
        self._fit(x, correction + surprise)
        self._seen += 1
        if self._seen % PUBLISH_EVERY:
            return None
        learned = self._corrected()
        if self._moved(learned, rows) < TOLERANCE:
            return None
        self._published = learned
        return learned

    def _fit(self, x: float, residual: float) -> None:
        """Add one residual and solve the two normal equations, with the ridge on their diagonal."""
        self._w = FORGETTING * self._w + 1
        self._x = FORGETTING * self._x + x
        self._xx = FORGETTING * self._xx + x * x
        self._r = FORGETTING * self._r + residual
        self._xr = FORGETTING * self._xr + x * residual
        xx, w = self._xx + RIDGE, self._w + RIDGE
        determinant = xx * w - self._x * self._x
        self._slope = (self._xr * w - self._x * self._r) / determinant
        self._offset = (xx * self._r - self._x * self._xr) / determinant

    def _corrected(self) -> Profile:
        largest = self._base.max_rows
        constant = self._offset + MARGIN * self._spread_ns
        table = (
            max(1, round(base_ns + self._slope * (index + 1) / largest + constant))
            for index, base_ns in enumerate(self._base.table_ns)
        )
        return Profile(self._base.partition, self._base.kind, tuple(accumulate(table, max)))

    def _moved(self, learned: Profile, rows: int) -> float:
        """The largest relative change at the smallest, the largest and the batch size just seen."""
        published = self._published
        return max(
            abs(learned.latency_ns(at) - published.latency_ns(at)) / published.latency_ns(at)
            for at in (1, rows, learned.max_rows)
        )
