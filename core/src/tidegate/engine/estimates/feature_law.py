"""Law of a model's stand-alone latency over a feature of its requests, such as tokens, pages or bytes.

The law is a monotone curve through the mean latency of requests of like features, robust against stalls. It is used
only where it predicts requests that it was not fitted to better than their application names, or than nothing, do. A
request then belongs to a *latency level*: all requests of a level are expected to take about as long.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log, sqrt
from operator import add
from statistics import fmean, median
from typing import NamedTuple

WINDOW_SAMPLES = 512
"""Number of latest stages of one request to which the law is fitted."""
MIN_SAMPLES = 32
"""Number of samples before the first fit; the next ones follow at half of it, then at a fixed interval."""
MAX_SAMPLES_WANTED = 64
"""Maximum number of requests that run alone while it is open whether the feature explains their latency."""
FIT_INTERVAL_SAMPLES = 64
WINDOW_BATCHES, MIN_BATCHES, BATCHES_BETWEEN_LOOKS = 256, 48, 16
"""Number of latest batches, and of the first ones, that show whether latency goes with the feature at all."""
MAX_KNOTS = 16
MIN_SAMPLES_PER_KNOT = 4
VALIDATION_FOLDS = 4
"""Number of parts of the samples, each of which is predicted by a law that was fitted to the others."""
MIN_GAIN_DEVIATIONS = 3.0
"""Standard deviations by which the law must predict better than names before it is used."""
MIN_GAIN_FRACTION = 0.1
"""Minimum fraction of the mean deviation, from names or from nothing, that the law must explain."""
MAX_STRAY = 1.0
"""Maximum deviation from the median of like requests, as a logarithm, that a sample counts with."""
LEVEL_RATIO = 1.1
"""Ratio of the latency of neighboring levels."""
MAX_LEVELS = 64
"""Maximum number of levels of a model, from the fastest."""
LEVEL_PREFIX = "~"
"""Prefix of the names of levels; the expected latency follows."""
MIN_NEAR, NEAR_FRACTION = 16, 4
"""Minimum number of samples that make the distribution of a level, and the part of all samples (one in this many)."""
MAX_POINTS = 64
"""Number of points of a level's distribution."""

Curve = Callable[[float], float]
"""Logarithm of the latency by feature."""


class FeatureSample(NamedTuple):
    """Stand-alone latency of one request."""

    feature: float
    app: str
    """Application tag that the client sent."""
    device_class: str
    log_ns: float
    """Logarithm of the latency per row, in ns."""


class _Explained(NamedTuple):
    """A way to predict the samples, and how well it predicts those that it was not fitted to."""

    by_name: bool
    by_feature: bool
    residuals: list[float]
    """Difference of each sample's logarithm to what was predicted, in the order of the samples."""

    @property
    def errors(self) -> list[float]:
        """Absolute residuals; a stall counts no more than the largest deviation."""
        return [min(abs(each), MAX_STRAY) for each in self.residuals]


class FeatureLaw:
    """Law of one model, from the latest stages of one request on all device classes.

    Device classes differ by a factor. Latencies are those of the first device class.
    """

    def __init__(self) -> None:
        self.is_used = False
        """Whether the feature explains latency."""
        self.has_levels = False
        """Whether levels were published: then requests are placed in them while the law is used."""
        self.samples_wanted = 0
        """How many requests should run alone to find out whether the feature explains their latency.

        None before batches show a relation: to run requests alone costs capacity.
        """
        self._batches: deque[tuple[int, float, float]] = deque(maxlen=WINDOW_BATCHES)
        """Rows of each batch, and the logarithms of its largest feature and of its latency."""
        self._batch_count = 0
        self._count = 0
        self._samples: deque[FeatureSample] = deque(maxlen=WINDOW_SAMPLES)
        self._shape: str | None = None
        """Shape of the model's requests; None: no request was seen."""
        self._has_shapes = False
        self._curve: Curve = _constant
        self._of_app: Mapping[str, float] = {}
        """Deviation of each application, as a logarithm, if names explain latency besides the feature."""
        self._factors: Mapping[str, float] = {}
        """Logarithm of the latency on each device class relative to the first."""
        self._bounds = (0, 0)
        """Lowest and highest level."""
        self._predicted: list[tuple[float, float]] = []
        """Predicted logarithm of each sample, ascending, and its deviation when it was not fitted to."""

    def level_of(self, feature: float, app: str) -> str:
        """Return the name of a request's latency level; "" while the law is not used."""
        if not (self.is_used and self.has_levels):
            return ""
        lowest, highest = self._bounds
        level = _level(self._curve(feature) + self._of_app.get(app, 0.0))
        return _name(max(lowest, min(highest, level)))

    def applies_to(self, shape: str) -> bool:
        """Return whether all requests of the model had this shape so far: else shapes explain the latency."""
        if self._shape is None:
            self._shape = shape
        if shape != self._shape:
            self._has_shapes, self.is_used = True, False
        return not self._has_shapes

    def add(self, sample: FeatureSample) -> bool:
        """Add the latency of a request that ran alone; return whether the levels may have moved."""
        self._samples.append(sample)
        self._count += 1
        if self._count < MIN_SAMPLES or self._has_shapes:
            return False
        interval = MIN_SAMPLES // 2 if self._count <= MAX_SAMPLES_WANTED else FIT_INTERVAL_SAMPLES
        if self._count % interval:
            return False
        self._fit()
        return self.is_used

    def add_batch(self, features: Sequence[float], rows: int, device_class: str, log_ns: float) -> None:
        """Add a batch of several requests, and see whether latency goes with the largest feature.

        `log_ns`: logarithm of the latency in ns.
        """
        if self.samples_wanted or self._has_shapes:
            return
        log_ns -= self._factors.get(device_class, 0.0)
        self._batches.append((rows, log(max(features)), log_ns))
        self._batch_count += 1
        if self._batch_count >= MIN_BATCHES and self._batch_count % BATCHES_BETWEEN_LOOKS == 0:
            correlation = _correlation_at_equal_rows(self._batches)
            if abs(correlation) * sqrt(len(self._batches)) > MIN_GAIN_DEVIATIONS:
                self.samples_wanted = MIN_SAMPLES

    def levels(self, device_class: str) -> Iterable[tuple[str, tuple[int, ...]]]:
        """Yield each level's name and its stand-alone latency on a device class: equally probable times, ascending."""
        factor = self._factors.get(device_class, 0.0)
        lowest, highest = self._bounds
        for level in range(lowest, highest + 1):
            center = level * log(LEVEL_RATIO)
            points = sorted(center + residual for residual in self._residuals_near(center))
            yield _name(level), tuple(max(1, round(exp(factor + each))) for each in points)

    def _residuals_near(self, center: float) -> list[float]:
        """Return the deviations of requests that were predicted to take about as long: their spread may vary."""
        predicted, count = self._predicted, max(MIN_NEAR, len(self._predicted) // NEAR_FRACTION)
        first = max(0, min(len(predicted) - count, bisect_left(predicted, (center,)) - count // 2))
        near = [residual for _, residual in predicted[first : first + count]]
        return near[:: -(-len(near) // MAX_POINTS)]

    @property
    def device_classes(self) -> Iterable[str]:
        """Device classes of which samples are known."""
        return self._factors

    @property
    def samples(self) -> int:
        """Number of samples to which the law is fitted."""
        return len(self._samples)

    def _fit(self) -> None:
        samples = list(self._samples)
        self._factors = _factors_of(samples, self._factors)
        logarithms = [sample.log_ns - self._factors[sample.device_class] for sample in samples]
        has_names = len({sample.app for sample in samples}) > 1
        ways = [(False, False), *([(True, False)] if has_names else [])]
        without = min((_explain(samples, logarithms, *way) for way in ways), key=_error)
        found = min((_explain(samples, logarithms, by_name, True) for by_name, _ in ways), key=_error)
        gains = [before - after for before, after in zip(without.errors, found.errors, strict=True)]
        gain = fmean(gains)
        deviation = sqrt(fmean((each - gain) ** 2 for each in gains) / len(gains))
        least = MIN_GAIN_FRACTION * fmean(without.errors)
        self.is_used = gain > 0 and (self.is_used or gain > max(MIN_GAIN_DEVIATIONS * deviation, least))
        if not self.is_used:
            is_open = gain > deviation and len(samples) >= self.samples_wanted
            if is_open and self.samples_wanted:
                self.samples_wanted = min(2 * self.samples_wanted, MAX_SAMPLES_WANTED)
            return
        self._of_app = _deviations(samples, logarithms) if found.by_name else {}
        own = [each - self._of_app.get(sample.app, 0.0) for sample, each in zip(samples, logarithms, strict=True)]
        self._curve = monotone_curve([sample.feature for sample in samples], own)
        predicted = [self._curve(each.feature) + self._of_app.get(each.app, 0.0) for each in samples]
        # A level is a range of predictions: how far its requests are from its center belongs to their spread.
        from_center = [each - _level(each) * log(LEVEL_RATIO) for each in predicted]
        residuals = map(add, from_center, found.residuals)
        self._predicted = sorted(zip(predicted, residuals, strict=True))
        lowest, highest = _level(min(predicted)), _level(max(predicted))
        self._bounds = lowest, min(highest, lowest + MAX_LEVELS - 1)


def _correlation_at_equal_rows(batches: Iterable[tuple[int, float, float]]) -> float:
    """Return the correlation of feature and latency among batches of as many rows."""
    of_rows: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for rows, feature, log_ns in batches:
        of_rows[rows].append((feature, log_ns))
    xx = xy = yy = 0.0
    for alike in of_rows.values():
        mean_x, mean_y = (fmean(column) for column in zip(*alike, strict=True))
        for x, y in alike:
            xx, xy, yy = xx + (x - mean_x) ** 2, xy + (x - mean_x) * (y - mean_y), yy + (y - mean_y) ** 2
    return xy / sqrt(xx * yy) if xx > 0 and yy > 0 else 0.0


def is_level(app: str) -> bool:
    """Return whether this is the name of a latency level."""
    return app.startswith(LEVEL_PREFIX)


def monotone_curve(features: Sequence[float], logarithms: Sequence[float]) -> Curve:
    """Return the curve that rises, or falls, all along the features, and is nearest to these logarithms of latencies.

    It passes through the means of some `MAX_KNOTS` runs of like features, without strays, and is constant beyond the
    first and the last one.
    """
    pairs = sorted(zip(features, logarithms, strict=True))
    most = max(MIN_SAMPLES_PER_KNOT, -(-len(pairs) // MAX_KNOTS))
    runs: list[list[tuple[float, float]]] = [[]]
    for pair in pairs:
        if len(runs[-1]) >= most and pair[0] != runs[-1][-1][0]:
            runs.append([])
        runs[-1].append(pair)
    if len(runs) > 1 and len(runs[-1]) < MIN_SAMPLES_PER_KNOT:
        runs[-2:] = [runs[-2] + runs[-1]]
    xs = [fmean(x for x, _ in run) for run in runs]
    means = [_mean_without_strays([y for _, y in run]) for run in runs]
    weights = [len(run) for run in runs]
    rising = _isotonic(means, weights)
    falling = [-each for each in _isotonic([-each for each in means], weights)]
    ys = min(
        (rising, falling),
        key=lambda fit: sum(w * (a - b) ** 2 for w, a, b in zip(weights, means, fit, strict=True)),
    )

    def curve(feature: float) -> float:
        at = bisect_right(xs, feature)
        if at in (0, len(xs)):
            return ys[min(at, len(xs) - 1)]
        share = (feature - xs[at - 1]) / (xs[at] - xs[at - 1])
        return ys[at - 1] + share * (ys[at] - ys[at - 1])

    return curve


def _constant(_feature: float) -> float:
    return 0.0


def _error(explained: _Explained) -> float:
    return sum(explained.errors)


def _mean_without_strays(values: Sequence[float]) -> float:
    middle = median(values)
    return fmean(middle + max(-MAX_STRAY, min(MAX_STRAY, each - middle)) for each in values)


def _isotonic(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Return the nearest values that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, its_weight, its_count = pools.pop()
            mean = (before * its_weight + mean * total) / (its_weight + total)
            total, count = its_weight + total, its_count + count
        pools.append((mean, total, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def _explain(
    samples: Sequence[FeatureSample], logarithms: Sequence[float], by_name: bool, by_feature: bool
) -> _Explained:
    """Predict every sample by the other parts of the samples."""
    residuals = [0.0] * len(samples)
    for fold in range(VALIDATION_FOLDS):
        others = [at for at in range(len(samples)) if at % VALIDATION_FOLDS != fold]
        known, their = [samples[at] for at in others], [logarithms[at] for at in others]
        of_app = _deviations(known, their) if by_name else {}
        own = [each - of_app.get(sample.app, 0.0) for sample, each in zip(known, their, strict=True)]
        if by_feature:
            curve = monotone_curve([sample.feature for sample in known], own)
        else:
            curve = _always(_mean_without_strays(own))
        for at in range(fold, len(samples), VALIDATION_FOLDS):
            sample = samples[at]
            residuals[at] = logarithms[at] - curve(sample.feature) - of_app.get(sample.app, 0.0)
    return _Explained(by_name, by_feature, residuals)


def _always(value: float) -> Curve:
    return lambda _feature: value


def _deviations(samples: Sequence[FeatureSample], logarithms: Sequence[float]) -> dict[str, float]:
    """Return how far each application's mean is from the mean of all; less if few of its requests were seen."""
    mean = _mean_without_strays(logarithms)
    of_app: defaultdict[str, list[float]] = defaultdict(list)
    for sample, each in zip(samples, logarithms, strict=True):
        of_app[sample.app].append(each)
    return {app: (_mean_without_strays(own) - mean) * len(own) / (len(own) + 1) for app, own in of_app.items()}


def _factors_of(samples: Iterable[FeatureSample], known: Mapping[str, float]) -> dict[str, float]:
    """Return the factor of each device class: requests of like features on it and on the first one differ by it.

    `known`: former factors; one of a class that was seen again stays, so that levels keep their meaning.
    """
    of_class: defaultdict[str, list[FeatureSample]] = defaultdict(list)
    for sample in samples:
        of_class[sample.device_class].append(sample)
    anchor = next((device_class for device_class in known if device_class in of_class), next(iter(of_class)))
    factors = {anchor: 0.0, **known}
    own = of_class.pop(anchor)
    curve = monotone_curve([each.feature for each in own], [each.log_ns - factors[anchor] for each in own])
    for device_class, others in of_class.items():
        factors[device_class] = median(each.log_ns - curve(each.feature) for each in others)
    return factors


def _level(log_ns: float) -> int:
    return round(log_ns / log(LEVEL_RATIO))


def _name(level: int) -> str:
    return f"{LEVEL_PREFIX}{LEVEL_RATIO**level / 1e6:.3g} ms"
