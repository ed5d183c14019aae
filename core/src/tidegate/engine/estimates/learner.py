"""Profiles corrected by observed stages: expected latency and a margin up to a high quantile.

For each (partition, device class, shape) the expected latency is `base(rows) + a*rows + c`: the base profile and a
learned linear correction (`ProfileCorrection`). The upper latency adds a margin up to a high quantile of the observed
latency, which follows how far stages of a size deviate (`LatencySpread`). With a linear base this learns alpha and beta
again; with a measured table it keeps the table's shape. A stage lasts from its dispatch until its answer has arrived,
so the delays of control and data (Symphony, figure 18) are included.

Outliers (a stall of the host, a compilation) have little effect. The first stages are judged together, from their
median; every later one by how far stages usually deviate. An outlier counts as at most one stage that deviated far: it
moves the margin, which is a quantile, and hardly the correction, which is the center.
"""

from collections import deque
from collections.abc import Mapping
from math import ceil
from statistics import median_low
from types import MappingProxyType

from tidegate.api import Policy, Profile
from tidegate.api.profile import MAX_SURPRISE_FACTOR
from tidegate.engine.estimates.shapes import elements_of

STAGE_WEIGHT_DECAY = 0.98
"""Weight of a stage after each later one."""
SPREAD_PRIOR_STAGES = 2.0
"""Weight of the prior in stages: half assumes equal deviation at any size, half a deviation in proportion to
latency.
"""
MIN_SPREAD_SHARE = 1e-6
"""Minimum relative deviation: even stages that never deviate have some spread."""


class LatencySpread:
    """Mean absolute deviation of stages from their expected latency: `same_ns + share * expected_ns`.

    A delay of the host or of a network is the same at any size; a GPU that others disturb strays in proportion.
    """

    __slots__ = ("_d", "_t", "_td", "_tt", "_w", "same_ns", "share")

    def __init__(self) -> None:
        self._w = self._t = self._tt = self._d = self._td = 0.0  # weighted sums over stages
        self.same_ns = 0.0
        self.share = MIN_SPREAD_SHARE

    def add(self, expected_ns: float, deviation_ns: float) -> None:
        """Add a stage with this expected latency and absolute deviation, used by the next `learn`."""
        self._w = STAGE_WEIGHT_DECAY * self._w + 1
        self._t = STAGE_WEIGHT_DECAY * self._t + expected_ns
        self._tt = STAGE_WEIGHT_DECAY * self._tt + expected_ns * expected_ns
        self._d = STAGE_WEIGHT_DECAY * self._d + deviation_ns
        self._td = STAGE_WEIGHT_DECAY * self._td + expected_ns * deviation_ns

    def learn(self) -> None:
        """Fit the two parts by least squares with the prior; neither is negative."""
        mean_ns, deviation_ns = self._t / self._w, self._d / self._w
        w, d = self._w + SPREAD_PRIOR_STAGES, self._d + SPREAD_PRIOR_STAGES * deviation_ns / 2
        tt, td = (
            self._tt + SPREAD_PRIOR_STAGES * mean_ns * mean_ns,
            self._td + SPREAD_PRIOR_STAGES * mean_ns * deviation_ns / 2,
        )
        determinant = w * tt - self._t * self._t
        same_ns, share = (tt * d - self._t * td) / determinant, (w * td - self._t * d) / determinant
        if same_ns < 0:
            same_ns, share = 0.0, td / tt
        elif share < 0:
            same_ns, share = d / w, 0.0
        self.same_ns, self.share = same_ns, max(MIN_SPREAD_SHARE, share)

    @property
    def is_known(self) -> bool:
        """Whether a deviation was observed."""
        return self.same_ns > 0 or self.share > MIN_SPREAD_SHARE

    def at(self, expected_ns: float) -> float:
        """Return the mean absolute deviation, in ns, of a stage with this expected latency; positive."""
        return self.same_ns + self.share * max(1.0, expected_ns)


OBSERVATION_WEIGHT_DECAY = 0.995
"""Weight of an observation after each later one: the last two hundred or so decide."""
SHIFTED, FORGETTING_THEN = 1.0, 0.85
"""Thresholds of a change: mean error of the last stages relative to the usual one, and the weight decay from
then on.
"""
AVERAGE_GAIN = 1 / 16
"""Gain of the running mean of errors."""
MAX_ERROR_RATIO = 5.0
"""Maximum error of a stage in that mean, relative to the usual one, so that at least four in a row make a change."""
MIN_PRIOR_OBSERVATIONS = 0.02
"""Weight of the prior, in observations, if stages do not deviate at all."""
PRIOR_SLOPE_ERROR = 0.3
"""Relative error of a prior's slope (latency per row): stages that deviate by more count less than the prior."""


class ProfileCorrection:
    """Correction of a profile in ns: `slope * rows / max_rows + offset`, added to the base profile.

    If observed batch sizes do not determine the slope (e.g. all had one size), the slope of the base profile stays:
    larger batches are tried, and smaller ones are not expected to be much faster. How much the sizes must differ
    depends on how far stages deviate. In any case a larger batch takes no less than a smaller one, and a row no more in
    it than alone, unless the base profile says so.
    """

    def __init__(self, base: Profile) -> None:
        self._most_rows = base.max_rows
        first, last = base.expected[0], base.expected[-1]
        steep = (last - first) / (1 - 1 / self._most_rows) if self._most_rows > 1 else 0.0
        self._least_slope = -steep
        self._least_offset = min(0.0, steep - last)
        self._law = (0.0, 0.0)
        self._is_law = False
        self.forget()

    def forget(self) -> None:
        """Discard everything learned."""
        self.slope = self.offset = 0.0
        self.w = self.x = self.xx = self._r = self._xr = 0.0  # weighted sums over observations
        self.t = self.xt = 0.0  # the same of what stages took, rather than of their residuals
        self._usual_ns = 0.0
        self._lately = 0.0

    def at(self, rows: int) -> float:
        """Return the correction in ns for a batch of `rows` rows."""
        return self.slope * rows / self._most_rows + self.offset

    def believe(self, slope: float, offset: float) -> None:
        """Use `slope * rows / max_rows + offset`, in ns, as the correction that is expected before any stage."""
        self._law, self._is_law = (slope, offset), True
        self._solve()

    def add(self, rows: int, residual_ns: float, taken_ns: float, usual_ns: float, weight: float) -> None:
        """Add a stage of `rows` rows and duration `taken_ns`, which is `residual_ns` more than the base profile.

        `usual_ns`: mean deviation of stages. `weight`: relative to an average stage.
        """
        x = rows / self._most_rows
        keep = OBSERVATION_WEIGHT_DECAY if abs(self._lately) < SHIFTED else FORGETTING_THEN
        self.w = keep * self.w + weight
        self.x = keep * self.x + weight * x
        self.xx = keep * self.xx + weight * x * x
        self._r = keep * self._r + weight * residual_ns
        self._xr = keep * self._xr + weight * x * residual_ns
        self.t = keep * self.t + weight * taken_ns
        self.xt = keep * self.xt + weight * x * taken_ns
        self._usual_ns = usual_ns
        self._solve()

    def strays(self, by: float) -> None:
        """Record how far the next stage deviates. `by`: its deviation as a multiple of the mean deviation."""
        self._lately += AVERAGE_GAIN * (max(-MAX_ERROR_RATIO, min(MAX_ERROR_RATIO, by)) - self._lately)

    def _solve(self) -> None:
        """Solve the two normal equations within the bounds."""
        slope, offset = self._law
        ridge = (MIN_PRIOR_OBSERVATIONS + (self._usual_ns * self.w / (PRIOR_SLOPE_ERROR * self.t)) ** 2) * (
            self.x / self.w
        ) ** 2
        if self._is_law:
            ridge = max(MIN_PRIOR_OBSERVATIONS, ridge)
        xx, w = self.xx + ridge, self.w + MIN_PRIOR_OBSERVATIONS
        xr, r = self._xr + ridge * slope, self._r + MIN_PRIOR_OBSERVATIONS * offset
        determinant = xx * w - self.x * self.x
        slope, offset = (xr * w - self.x * r) / determinant, (xx * r - self.x * xr) / determinant
        if slope < self._least_slope:
            slope = self._least_slope
            offset = (r - self.x * slope) / w
        if offset < self._least_offset:
            offset = self._least_offset
            slope = max(self._least_slope, (xr - self.x * offset) / xx)
        self.slope, self.offset = slope, offset


MARGIN_WINDOW_STAGES = 256
"""Number of latest stages that determine the margin."""
MIN_SHAPE_STAGES = 64
"""Minimum number of stages of a shape that determine its own deviation; with fewer it borrows that of other shapes."""
KNOWN_STAGES = 2
"""Number of stages after which a shape contributes to the first profile of others."""
TOLD_APART = 1e-3
"""Minimum variance of elements and rows, as a fraction of the mean square, to separate the cost of a batch from its
elements.

320 elements in batches of four rows and 640 in batches of two cannot be distinguished.
"""
FAR, ALWAYS_NEAR = 5, 0.05
"""An outlier deviates by this multiple of the usual deviation, and by this fraction of the latency.

An exponential delay exceeds its mean by 4.9 mean deviations once in a hundred times: such delays are no outliers.
"""
TOO_SHORT, TOO_LONG = 0.001, 0.02
"""Relative error, too short and too long, from which a corrected profile is published; less would only disturb
policies.

Too short a latency makes responses late; too long a latency costs a little throughput.
"""
PUBLISH_EVERY = 8
"""Number of observations between two comparisons with the published profile; after doubts they are more frequent.

The first stages are judged together in this number: half of them may be outliers.
"""


class ProfileLearner:
    """Learner of the profile of one partition, device class and shape, from the durations of stages."""

    def __init__(
        self,
        base: Profile,
        quantile: float = Policy.quantile,
        others: Mapping[str, "ProfileLearner"] = MappingProxyType({}),
        *,
        guessed: bool = False,
    ) -> None:
        """Create a learner that starts from the profile `base`.

        `quantile`: fraction of stages within the upper latency. `others`: learners of the same partition and device
        class, by shape, including this one. `guessed`: the base was derived from other shapes, so a few stages suffice
        to publish a change.
        """
        self._base = base
        self._published = base
        self.quantile = quantile
        """The share of stages that what is planned covers."""
        self._others = others
        self._elements = elements_of(base.shape)
        self._first_look = 2 if guessed else PUBLISH_EVERY
        """Number of first stages after which they are examined, and again at every doubling."""
        self._first: list[tuple[int, int]] = []
        """Rows and duration of the first stages, while they are judged together."""
        self._warming: list[float] = []
        """How many times as long as expected stages took that warmed a worker up, before any other was seen."""
        self.is_hearsay = False
        """Whether its estimate is from such stages."""
        self._forget()

    def _forget(self) -> None:
        self._seen = 0
        self._first.clear()
        self._correction = ProfileCorrection(self._base)
        self._begin()

    def _begin(self) -> None:
        self._correction.forget()
        self._spread = LatencySpread()
        self._rows: deque[int] = deque(maxlen=MARGIN_WINDOW_STAGES)
        """The rows of the latest stages."""
        self._residuals: deque[float] = deque(maxlen=MARGIN_WINDOW_STAGES)
        """How much longer than the base has it these took."""
        self._most_rows = 0
        """The rows of the largest stage so far."""

    @property
    def seen(self) -> int:
        """Number of stages since the last doubt."""
        return self._seen

    @property
    def _knows(self) -> bool:
        """Whether its stages tell something about other shapes."""
        return min(self._seen, len(self._rows)) >= KNOWN_STAGES

    @property
    def published(self) -> Profile:
        """The profile published last; the base at first."""
        return self._published

    def observe(self, rows: int, duration_ns: int) -> Profile | None:
        """Add a stage; return the corrected profile if it has moved enough."""
        self._seen += 1
        if self._seen <= PUBLISH_EVERY:
            self._first.append((rows, duration_ns))
            if self._is_look():
                self._judge_together()
        else:
            self._judge(rows, duration_ns)
            if self._is_look():
                self._spread.learn()
        if not self._is_look():
            return None
        self._heed_others()
        learned = self._corrected()
        if not self._moved(learned, rows):
            return None
        self._published, self.is_hearsay = learned, False
        return learned

    def observe_warming(self, rows: int, duration_ns: int) -> Profile | None:
        """Add the first stage on a worker; return a profile if nothing better is known, otherwise None.

        The first stage may take many times as long as later ones, but not less: if several workers show that the base
        is far too short, the fastest of them counts until a stage on a warm worker decides.
        """
        if self._seen or (self._published is not self._base and not self.is_hearsay):
            return None
        self._warming.append(duration_ns / self._base.expected_ns(rows))
        least = min(self._warming)
        if len(self._warming) < KNOWN_STAGES or least < MAX_SURPRISE_FACTOR:
            return None
        learned = self._base.scaled(least)
        if self.is_hearsay and learned == self._published:
            return None
        self._published, self.is_hearsay, self._first_look = learned, True, 1
        return learned

    def doubt(self, base: Profile) -> bool:
        """Discard all observations if the published profile far exceeds `base`; the next stage then sets the profile.

        Returns whether they were discarded. `base`: profile to compare with.
        """
        published = self._published
        if not any(published.upper_ns(rows) > (1 + TOO_LONG) * base.upper_ns(rows) for rows in base.every_size):
            return False
        self._first_look = 1
        self._forget()
        return True

    def _judge_together(self) -> None:
        """Fit the first stages again: none strays further from the middle one than most do, at its number of rows.

        A stage of more rows may besides take as much longer as it has rows: of batches as large nothing is known yet.
        """
        factors = [duration_ns / self._base.expected_ns(rows) for rows, duration_ns in self._first]
        middle = median_low(factors)
        near = FAR * median_low(abs(factor - middle) for factor in factors) + ALWAYS_NEAR * middle
        per_row_ns = median_low(duration_ns / rows for rows, duration_ns in self._first)
        self._begin()
        taken = []
        for rows, duration_ns in self._first:
            expected_ns = self._base.expected_ns(rows)
            most_ns = max((middle + near) * expected_ns, per_row_ns * rows)
            taken.append((rows, max((middle - near) * expected_ns, min(most_ns, duration_ns)) - expected_ns))
        for rows, residual_ns in taken:
            base_ns = self._base.expected_ns(rows)
            self._fit(rows, base_ns, residual_ns, self._spread.at(base_ns + residual_ns))
        fitted = [self._expected_ns(rows) for rows, _ in taken]
        for fitted_ns, (_, stray_ns) in zip(fitted, self._strays(), strict=True):
            self._spread.add(fitted_ns, abs(stray_ns))
        self._spread.learn()
        self._correction.forget()
        self._rows.clear()
        self._residuals.clear()
        for fitted_ns, (rows, residual_ns) in zip(fitted, taken, strict=True):  # who strays far says less
            self._fit(rows, self._base.expected_ns(rows), residual_ns, self._spread.at(fitted_ns))

    def _judge(self, rows: int, duration_ns: int) -> None:
        """Fit a later stage, which strays no further than stages have done."""
        base_ns = self._base.expected_ns(rows)
        expected_ns = base_ns + self._correction.at(rows)
        usual_ns = self._spread.at(expected_ns)
        near = FAR * usual_ns + ALWAYS_NEAR * expected_ns
        far = near
        if rows > self._most_rows:  # it may take as much longer as it has rows: of batches as large nothing is known
            far = max(near, expected_ns * (rows / self._most_rows - 1))
        surprise = max(-near, min(far, duration_ns - expected_ns))
        self._correction.strays(surprise / usual_ns)
        self._spread.add(expected_ns, min(abs(surprise), near))
        self._fit(rows, base_ns, expected_ns + surprise - base_ns, usual_ns)

    def _is_look(self) -> bool:
        """After doubts the very first stage decides whether more are sent after it."""
        seen = self._seen
        if seen >= PUBLISH_EVERY or seen & (seen - 1):
            return seen % PUBLISH_EVERY == 0
        return seen >= self._first_look or (seen > 1 and self._is_far_off())

    def _is_far_off(self) -> bool:
        """Whether all of the first stages say that what is expected is not even nearly right."""
        published = self._published
        return all(took_ns > MAX_SURPRISE_FACTOR * published.upper_ns(rows) for rows, took_ns in self._first) or all(
            MAX_SURPRISE_FACTOR * took_ns < published.expected_ns(rows) for rows, took_ns in self._first
        )

    def _expected_ns(self, rows: int) -> float:
        return self._base.expected_ns(rows) + self._correction.at(rows)

    def _fit(self, rows: int, base_ns: float, residual_ns: float, strays_ns: float) -> None:
        """Add one residual to the base: it says the less, the farther stages stray of which so much was expected."""
        correction, spread = self._correction, self._spread
        self._most_rows = max(self._most_rows, rows)
        taken_ns = residual_ns + base_ns
        usual_ns = spread.at(correction.t / correction.w if correction.w else taken_ns)
        weight = (usual_ns / strays_ns) ** 2 if spread.is_known else 1.0
        correction.add(rows, residual_ns, taken_ns, usual_ns, weight)
        self._rows.append(rows)
        self._residuals.append(residual_ns)

    def _heed_others(self) -> None:
        """Let the law over all shapes, `offset + slope * rows * elements`, decide what the own stages do not tell.

        Shapes of different sizes teach what rows cost, but only with batches of several rows among them: that a larger
        picture takes longer does not say that two pictures take twice as long. Believed too early, no two would ever be
        merged, and their latency would never be learned.
        """
        known = [other for other in self._others.values() if other._elements and other._knows]
        if not self._elements or max((other._most_rows for other in known), default=1) == 1:
            return
        # Least squares over z = share of max_rows * elements.
        w = z = zz = t = zt = 0.0
        for other in known:
            seen = other._correction
            weight = (seen.w / seen.t) ** 2  # relative deviations count
            size = other._elements / self._elements
            w += weight * seen.w
            z += weight * size * seen.x
            zz += weight * size**2 * seen.xx
            t += weight * seen.t
            zt += weight * size * seen.xt
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
            self._correction.believe(steep, most - steep)

    def _strays(self, most: int = MARGIN_WINDOW_STAGES) -> list[tuple[int, float]]:
        """Rows of each of the latest stages, and how much longer it took than the correction has it, in ns."""
        correction = self._correction.at
        latest = list(zip(self._rows, self._residuals, strict=True))[-most:]
        return [(rows, residual - correction(rows)) for rows, residual in latest]

    def _margin(self) -> float:
        """Return the margin that covers the given fraction of the latest stages, in multiples of the spread."""
        spread = self._spread.at
        sizes = set(self._rows)
        added_ns = {rows: self._correction.at(rows) for rows in sizes}
        usual_ns = {rows: spread(self._base.expected_ns(rows) + added_ns[rows]) for rows in sizes}
        if (
            len(sizes) == 1 and len(self._rows) >= MIN_SHAPE_STAGES
        ):  # they are in the order of their residuals: nothing is quicker
            (only,) = sizes
            return max(0.0, (self._ranked(sorted(self._residuals)) - added_ns[only]) / usual_ns[only])
        latest = zip(self._rows, self._residuals, strict=True)
        above = [(residual - added_ns[rows]) / usual_ns[rows] for rows, residual in latest]
        if len(above) < MIN_SHAPE_STAGES:
            others = [other for other in self._others.values() if other is not self and other._rows]
            for other in others:
                most_rows = min(self._base.max_rows, other._base.max_rows)  # a row alone may take next to nothing
                scale = self._published.expected_ns(most_rows) / other.published.expected_ns(most_rows)
                strays = other._strays(max(1, MARGIN_WINDOW_STAGES // len(others)))
                above += [scale * stray / spread(scale * other._expected_ns(rows)) for rows, stray in strays]
        above.sort()
        return max(0.0, self._ranked(above))

    def _ranked(self, ordered: list[float]) -> float:
        """The quantile; the longest of n is exceeded by one stage in n + 1: the rank counts the next stage, too."""
        return ordered[min(len(ordered), ceil(self.quantile * (len(ordered) + 1))) - 1]

    def _corrected(self) -> Profile:
        correction, spread, margin = self._correction, self._spread, self._margin()
        return self._base.corrected(correction.slope, correction.offset, margin * spread.same_ns, margin * spread.share)

    def _moved(self, learned: Profile, rows: int) -> bool:
        """Whether it differs enough at the smallest, the largest or the batch size just seen."""
        published, sizes = self._published, (1, rows, learned.max_rows)
        ratios = [learned.upper_ns(at) / published.upper_ns(at) for at in sizes]
        centers = [learned.expected_ns(at) / published.expected_ns(at) for at in sizes]
        return max(ratios) > 1 + TOO_SHORT or min(ratios + centers) < 1 - TOO_LONG or max(centers) > 1 + TOO_LONG
