"""Profiles corrected by what is observed: least squares on the residual, newer observations weighing more.

For each (partition, kind, shape) `base(rows) + a*rows + c` is expected: the base profile and a learned linear
correction. What is planned is that and a margin up to a high quantile of what legs took: where batches wait for the
last moment, whatever takes longer than planned is late. With a linear base this re-learns alpha and beta;
with a measured table it keeps the table's shape. A leg lasts from its dispatch until its answer is there: the delays of
control and data (Symphony, figure 18) are learned with it.

It is robust by construction. The first legs are judged together, from the middle one of them, and every later one by
how far legs have strayed from what was expected: an outlier (a stall of the host, a compilation) counts as at most
one that strayed far, so that it moves the margin, which is a quantile, and hardly the correction, which is the centre.
"""

from collections import deque
from collections.abc import Mapping
from math import ceil
from statistics import fmean, median_low
from types import MappingProxyType

from tidegate.api import Policy, Profile
from tidegate.engine.shapes import elements_of

FORGETTING = 0.98
"""Weight of an observation after each later one: the last fifty or so decide on the correction."""
RIDGE = 0.02
"""Observations that the prior is worth: it decides where all batches had one size. No correction, or the law."""
LATEST = 256
"""How many legs decide on the margin."""
ENOUGH = 64
"""A shape with fewer legs than that borrows from others how far legs stray."""
KNOWN_LEGS = 2
"""A shape of which so many legs were seen tells something about others."""
TOLD_APART = 1e-3
"""Legs tell what a batch costs from what its elements cost where the variance of their elements, rows included, is such
a share of the mean square: 320 elements in batches of four rows and 640 in batches of two are one and the same."""
SPREAD_GAIN = 0.05
FAR, ALWAYS_NEAR = 5, 0.05
"""An outlier is what strays by so many times the usual, and by such a share of the latency besides.

Of an exponential delay one in a hundred is 4.9 times its mean deviation longer than its mean: such are none.
"""
TOO_SHORT, TOO_LONG = 0.001, 0.02
"""A profile is published anew when it was off by such a share: less would only disturb schedulers.

Too short a latency makes answers late, too long a one costs a little throughput.
"""
PUBLISH_EVERY = 8
"""Observations between two looks at whether it moved; the first ones after doubts are looked at more often.

So many are judged together at first: half of them may be outliers, and the others still decide.
"""


class ProfileLearner:
    """Keeps one (partition, kind, shape) honest."""

    def __init__(
        self,
        base: Profile,
        quantile: float = Policy.quantile,
        others: Mapping[str, "ProfileLearner"] = MappingProxyType({}),
        *,
        guessed: bool = False,
    ) -> None:
        """`quantile`: the share of legs that what is planned covers.

        `others`: the learners of the same partition and kind, by shape, this one among them. `guessed`: the base was
        derived from other shapes, so that a few legs are worth telling of.
        """
        self._base = base
        self._published = base
        self._quantile = quantile
        self._others = others
        self._elements = elements_of(base.shape)
        self._first_look = 2 if guessed else PUBLISH_EVERY
        """The first legs are looked at when so many are seen, and at every doubling."""
        self._first: list[tuple[int, int]] = []
        """Rows and duration of the first legs, while they are judged together."""
        self._forget()

    def _forget(self) -> None:
        self._seen = 0
        self._first.clear()
        self._prior = (0.0, 0.0)  # slope and offset, where observations do not tell
        self._begin()

    def _begin(self) -> None:
        self._slope = self._offset = 0.0  # the correction a (per share of max_rows) and c, in ns
        self._spread_ns = 0.0  # mean absolute deviation
        self._latest: deque[tuple[float, float]] = deque(maxlen=LATEST)  # share of max_rows, residual to the base
        self._w = self._x = self._xx = self._r = self._xr = 0.0  # weighted sums over observations
        self._t = self._xt = 0.0  # the same of what legs took, rather than of their residuals
        self._most_rows = 0  # of a leg so far

    @property
    def seen(self) -> int:
        """How many legs were observed, since the last doubts."""
        return self._seen

    @property
    def published(self) -> Profile:
        """What it told last; at first the base."""
        return self._published

    def observe(self, rows: int, duration_ns: int) -> Profile | None:
        """Take in one leg; returns the corrected profile when it has moved enough to be worth telling."""
        self._seen += 1
        if self._seen <= PUBLISH_EVERY:
            self._first.append((rows, duration_ns))
            if self._is_look():
                self._judge_together()
        else:
            self._judge(rows, duration_ns)
        if not self._is_look():
            return None
        self._heed_others()
        learned = self._corrected()
        if not self._moved(learned, rows):
            return None
        self._published = learned
        return learned

    def doubt(self, base: Profile) -> bool:
        """Forget what was observed: the very next leg decides. False where no more than this base is expected."""
        pairs = zip(self._published.planned, base.planned, strict=False)
        if not any(now_ns > (1 + TOO_LONG) * base_ns for now_ns, base_ns in pairs):
            return False
        self._first_look = 1
        self._forget()
        return True

    def _judge_together(self) -> None:
        """Fit the first legs anew: none strays further from the middle one than most do, at its number of rows.

        A leg of more rows may besides take as much longer as it has rows: of batches as large nothing is known yet.
        """
        factors = [duration_ns / self._base.expected_ns(rows) for rows, duration_ns in self._first]
        middle = median_low(factors)
        near = FAR * median_low(abs(factor - middle) for factor in factors) + ALWAYS_NEAR * middle
        per_row_ns = median_low(duration_ns / rows for rows, duration_ns in self._first)
        self._begin()
        for rows, duration_ns in self._first:
            expected_ns = self._base.expected_ns(rows)
            most_ns = max((middle + near) * expected_ns, per_row_ns * rows)
            taken_ns = max((middle - near) * expected_ns, min(most_ns, duration_ns))
            self._fit(rows, taken_ns - expected_ns)
        self._spread_ns = fmean(map(abs, self._strays()))

    def _judge(self, rows: int, duration_ns: int) -> None:
        """Fit a later leg, which strays no further than legs have done."""
        x = rows / self._base.max_rows
        correction = self._slope * x + self._offset
        expected_ns = self._base.expected_ns(rows) + correction
        near = FAR * self._spread_ns + ALWAYS_NEAR * expected_ns
        far = near
        if rows > self._most_rows:  # it may take as much longer as it has rows: of batches as large nothing is known
            far = max(near, expected_ns * (rows / self._most_rows - 1))
        surprise = max(-near, min(far, duration_ns - expected_ns))
        self._spread_ns += max(SPREAD_GAIN, 1 / self._seen) * (min(abs(surprise), near) - self._spread_ns)
        self._fit(rows, correction + surprise)

    def _is_look(self) -> bool:
        """After doubts the very first leg decides whether more are sent after it."""
        seen = self._seen
        return seen % PUBLISH_EVERY == 0 or (self._first_look <= seen < PUBLISH_EVERY and seen & (seen - 1) == 0)

    def _fit(self, rows: int, residual: float) -> None:
        """Add one residual to the base."""
        x = rows / self._base.max_rows
        taken_ns = residual + self._base.expected_ns(rows)
        self._most_rows = max(self._most_rows, rows)
        self._w = FORGETTING * self._w + 1
        self._x = FORGETTING * self._x + x
        self._xx = FORGETTING * self._xx + x * x
        self._r = FORGETTING * self._r + residual
        self._xr = FORGETTING * self._xr + x * residual
        self._t = FORGETTING * self._t + taken_ns
        self._xt = FORGETTING * self._xt + x * taken_ns
        self._latest.append((x, residual))
        self._solve()

    def _solve(self) -> None:
        """Solve the two normal equations, with the ridge on their diagonal."""
        xx, w = self._xx + RIDGE, self._w + RIDGE
        xr, r = self._xr + RIDGE * self._prior[0], self._r + RIDGE * self._prior[1]
        determinant = xx * w - self._x * self._x
        self._slope = (xr * w - self._x * r) / determinant
        self._offset = (xx * r - self._x * xr) / determinant

    def _heed_others(self) -> None:
        """Let the law over all shapes, `offset + slope * rows * elements`, decide what the own legs do not tell.

        Shapes of different sizes teach what rows cost, even where all batches had one row.
        """
        known = [other for other in self._others.values() if other._elements and other._w >= KNOWN_LEGS]
        if not self._elements or not known:
            return
        # Least squares over z = share of max_rows * elements.
        w = z = zz = t = zt = 0.0
        for other in known:
            weight = (other._w / other._t) ** 2  # relative deviations count
            size = other._elements / self._elements
            w += weight * other._w
            z += weight * size * other._x
            zz += weight * size**2 * other._xx
            t += weight * other._t
            zt += weight * size * other._xt
        variance = zz * w - z * z
        if variance < TOLD_APART * zz * w:
            return
        slope = max(0.0, (zt * w - z * t) / variance)
        offset = (t - slope * z) / w
        if offset < 0:
            slope, offset = zt / zz, 0.0
        largest = self._base.max_rows
        if largest > 1:
            least, most = (offset + slope * rows / largest - self._base.expected_ns(rows) for rows in (1, largest))
            steep = (most - least) / (1 - 1 / largest)
            self._prior = steep, most - steep
            self._solve()

    def _strays(self) -> list[float]:
        """How much longer each of the latest legs took than the correction has it, in ns."""
        slope, offset = self._slope, self._offset
        return [residual - slope * x - offset for x, residual in self._latest]

    def _margin_ns(self) -> float:
        """What covers the given share of the latest legs, besides what is expected."""
        above = self._strays()
        if len(above) < ENOUGH:
            for other in self._others.values():
                if other is not self:
                    most_rows = min(self._base.max_rows, other._base.max_rows)  # a row alone may take next to nothing
                    scale = self._published.expected_ns(most_rows) / other.published.expected_ns(most_rows)
                    above += [scale * stray for stray in other._strays()]
        above.sort()
        # The longest of n is exceeded by one leg in n + 1: the rank counts the next leg, too.
        rank = min(len(above), ceil(self._quantile * (len(above) + 1)))
        return max(0.0, above[rank - 1])

    def _corrected(self) -> Profile:
        return self._base.corrected(self._slope, self._offset, self._margin_ns())

    def _moved(self, learned: Profile, rows: int) -> bool:
        """Whether it differs enough at the smallest, the largest or the batch size just seen."""
        published, sizes = self._published, (1, rows, learned.max_rows)
        ratios = [learned.planned_ns(at) / published.planned_ns(at) for at in sizes]
        centres = [learned.expected_ns(at) / published.expected_ns(at) for at in sizes]
        return max(ratios) > 1 + TOO_SHORT or min(ratios + centres) < 1 - TOO_LONG or max(centres) > 1 + TOO_LONG
