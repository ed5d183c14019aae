"""Fixed cost and noise of a model's batches on one device class, and the mean latency of its applications.

A batch of r rows, padded to its longest request, takes `(c0 + r * (longest - c0)) * noise`; a request that ran alone
took `own * noise`. All requests of a batch share the noise, so only the requests' own times make the longest of several
longer than one of them. Stages of single requests cannot separate the two; the mean and the scatter of the latency of
larger batches can.
"""

from dataclasses import dataclass
from math import exp, log, sqrt

NOISE_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Hypotheses on the noise, as fractions of the smallest scatter of an application."""
PRIOR, PRIOR_CV = 2.0, 0.2
"""Prior log-likelihood ratio of "all scatter is noise" to "none is", and the scatter (CV) from which it applies in
full.

A policy that believes that nothing is noise forms no batches, so no batch could correct it. Smaller scatter does no
harm.
"""
MIN_BATCHES = 16
"""Number of batches after which the estimate replaces the profile."""
BATCH_WEIGHT_DECAY = 0.995
"""Weight of an application's batch after each later one, for means and the fixed cost."""
MAX_STRAY, FADE_THEN = 1.0, 0.85
"""Mean deviation, in standard deviations, from which an application's latency has changed; weight decay from
then on.
"""
AVERAGE_GAIN = 1 / 16
"""Gain of the running mean of deviations."""
FADE_OF_LIKELIHOOD = 0.98
"""Weight of a batch after each later one, for the likelihood of the noise hypotheses."""
MAX_ALONE = 16
"""Maximum weight of stages of one request, in batches."""
LOWER_BOUND_DEVIATIONS = 2.0
"""Standard deviations below the mean that serve as the lower bound of a normal variable."""
MIN_CUBE_ROOT = 0.5
"""Lower bound of the cube root of a chi-squared variable divided by its mean."""
MAX_SURPRISE = 3.0
"""Maximum deviation that a batch counts with, in standard deviations, so that a stall proves nothing."""
MIN_CV = 0.005
"""Minimum scatter of batches, as a fraction of their latency."""


@dataclass(frozen=True, slots=True)
class StandaloneTimes:
    """Stand-alone times of one application's requests, including noise."""

    count: int
    mean_ns: float
    cv2: float
    """Squared coefficient of variation, including noise."""

    @property
    def max_noise_cv2(self) -> float:
        """Upper bound of the squared coefficient of variation of the noise, by the chi-squared distribution."""
        ninths = 2 / (9 * max(1, self.count - 1))
        return self.cv2 / max(MIN_CUBE_ROOT, 1 - ninths - LOWER_BOUND_DEVIATIONS * sqrt(ninths)) ** 3

    def own_fraction(self, noise_cv: float) -> float:
        """Return the standard deviation of the requests' own times as a fraction of the total.

        `noise_cv`: coefficient of variation of the noise.
        """
        noise2 = noise_cv * noise_cv
        return sqrt((self.cv2 - noise2) / (self.cv2 * (1 + noise2))) if self.cv2 > noise2 else 0.0


class _Sums:
    """Weighted sums over the batches whose longest request is expected to be of one application."""

    __slots__ = ("alone", "alone_weight", "durations", "others2", "others_durations", "rows2", "rows_others", "stray")

    def __init__(self, alone: StandaloneTimes) -> None:
        self.know(alone)
        self.stray = 0.0
        self.rows2 = self.rows_others = self.others2 = 0.0
        self.durations = [0.0] * len(NOISE_FRACTIONS)
        """Rows times durations, less what the longest takes beyond the mean, by hypothesis."""
        self.others_durations = [0.0] * len(NOISE_FRACTIONS)

    def know(self, alone: StandaloneTimes) -> None:
        """Let this be what requests took alone."""
        self.alone, self.alone_weight = alone, min(MAX_ALONE, alone.count) / alone.mean_ns

    def add(self, rows: int, weight: float, durations_ns: list[float], strays: float) -> None:
        """Add a batch that strays by this many standard deviations.

        `durations_ns`: what it would have taken if its longest request took the mean, by hypothesis.
        """
        self.stray += AVERAGE_GAIN * (strays - self.stray)
        fade, others = BATCH_WEIGHT_DECAY, rows - 1
        if abs(self.stray) > MAX_STRAY:
            fade = FADE_THEN
            self.alone_weight *= fade
        self.rows2 = fade * self.rows2 + weight * rows * rows
        self.rows_others = fade * self.rows_others + weight * rows * others
        self.others2 = fade * self.others2 + weight * others * others
        for number, duration_ns in enumerate(durations_ns):
            self.durations[number] = fade * self.durations[number] + weight * rows * duration_ns
            self.others_durations[number] = fade * self.others_durations[number] + weight * others * duration_ns

    def total(self, hypothesis: int) -> tuple[float, float]:
        """The sums of `rows ** 2` and of `rows * duration`, stages of one request among them."""
        return self.rows2 + self.alone_weight / self.alone.mean_ns, self.durations[hypothesis] + self.alone_weight


class BatchLaw:
    """Estimator of the law of batches, for each noise hypothesis.

    It fits `r * mean - (r - 1) * c0 = duration` by least squares. The mean is that of the application that takes
    longest. Hypotheses are weighted by the likelihood of the observed batches.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.max_noise_cv = 0.0
        """The scatter of the application whose times scatter least: noise is no more."""
        self._sums: dict[str, _Sums] = {}
        self._fixed_ns = [0.0] * len(NOISE_FRACTIONS)
        self._log_likelihoods = [0.0] * len(NOISE_FRACTIONS)

    def know(self, app: str, alone: StandaloneTimes) -> None:
        """Set the stand-alone times of an application's requests."""
        if app in self._sums:
            self._sums[app].know(alone)
        else:
            self._sums[app] = _Sums(alone)
        self._solve()

    def observe(self, app: str, rows: int, longest_ns: float, variance_ns2: float, duration_ns: int) -> None:
        """Add a batch of `rows` rows whose longest request is expected to be of application `app`.

        `duration_ns`: its latency. `longest_ns`, `variance_ns2`: mean (ns) and variance (ns squared) of the longest
        stand-alone time, including noise.
        """
        self.seen += 1
        sums = self._sums[app]
        durations_ns = []
        weight = strays = 0.0
        for number, noise_cv in enumerate(self._noises()):
            own, mean_ns, fixed_ns = (
                sums.alone.own_fraction(noise_cv),
                self._mean_ns(sums, number),
                self._fixed_ns[number],
            )
            beyond_ns = own * (longest_ns - sums.alone.mean_ns)
            expected_ns = max(mean_ns, fixed_ns + rows * (mean_ns + beyond_ns - fixed_ns))
            relative2 = noise_cv * noise_cv + MIN_CV * MIN_CV
            variance_here_ns2 = (rows * own) ** 2 * variance_ns2 + relative2 * expected_ns * expected_ns
            if self.seen > 1:
                strays = (duration_ns - expected_ns) / sqrt(variance_here_ns2)
                strays = max(-MAX_SURPRISE, min(MAX_SURPRISE, strays))
                before = FADE_OF_LIKELIHOOD * self._log_likelihoods[number]
                self._log_likelihoods[number] = before - (log(variance_here_ns2) + strays * strays) / 2
            durations_ns.append(duration_ns - rows * beyond_ns)
            weight += 1 / expected_ns**2 / len(NOISE_FRACTIONS)
        sums.add(rows, weight, durations_ns, strays)
        self._solve()

    def fixed_ns(self, otherwise_ns: float) -> float:
        """Return the expected fixed cost c0 in ns; `otherwise_ns` until enough batches were observed."""
        if self.seen < MIN_BATCHES:
            return otherwise_ns
        return sum(weight * fixed_ns for weight, fixed_ns in zip(self._weights(), self._fixed_ns, strict=True))

    @property
    def noise_cv(self) -> float:
        """Expected coefficient of variation of the noise."""
        fractions = zip(self._weights(), NOISE_FRACTIONS, strict=True)
        return self.max_noise_cv * sqrt(sum(weight * fraction for weight, fraction in fractions))

    def mean_ns(self, app: str) -> float:
        """Return the mean stand-alone latency of a known application in ns, corrected by observed batches."""
        return sum(weight * self._mean_ns(self._sums[app], number) for number, weight in enumerate(self._weights()))

    def _mean_ns(self, sums: _Sums, hypothesis: int) -> float:
        rows2, durations = sums.total(hypothesis)
        return (durations + sums.rows_others * self._fixed_ns[hypothesis]) / rows2

    def _solve(self) -> None:
        """Fit c0 together with all means: each mean is bound to the others by c0 alone."""
        known = [sums for sums in self._sums.values() if sums.others2]
        for hypothesis in range(len(NOISE_FRACTIONS)):
            squares = right = 0.0
            for sums in known:
                rows2, durations = sums.total(hypothesis)
                squares += sums.others2 - sums.rows_others**2 / rows2
                right += sums.rows_others * durations / rows2 - sums.others_durations[hypothesis]
            if squares > 0:
                self._fixed_ns[hypothesis] = max(0.0, right / squares)

    def _noises(self) -> list[float]:
        return [sqrt(fraction) * self.max_noise_cv for fraction in NOISE_FRACTIONS]

    def _weights(self) -> list[float]:
        prior = PRIOR * min(1.0, self.max_noise_cv / PRIOR_CV)
        logarithms = [
            prior * fraction + each for fraction, each in zip(NOISE_FRACTIONS, self._log_likelihoods, strict=True)
        ]
        best = max(logarithms)
        likelihoods = [exp(each - best) for each in logarithms]
        total = sum(likelihoods)
        return [each / total for each in likelihoods]
