"""Law of a model's stand-alone latency over a feature of its requests, such as tokens, pages or bytes.

The law is a monotone curve through the mean latency of requests of like features, robust against stalls. It is used
only where it predicts requests that it was not fitted to better than their application names, or than nothing, do. A
request then belongs to a *latency level*: all requests of a level are expected to take about as long.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log, sqrt
from operator import add, attrgetter
from statistics import fmean, median
from typing import NamedTuple, TypeVar

WINDOW_SAMPLES = 256
"""Number of latest stages of one request to which the law is fitted."""
MIN_SAMPLES = 32
"""Number of samples before the first fit; the next ones follow at half of it, then at a fixed interval."""
MAX_SAMPLES_WANTED = 64
"""Maximum number of requests that run alone while it is open whether the feature explains their latency."""
FIT_INTERVAL_SAMPLES = 64
FIT_INTERVAL_NS = 2_000_000_000
"""Minimum time in ns between two fits of a law, because the event loop waits for them."""
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
MAX_POINTS = 32
"""Number of points of a level's distribution."""

_Value = TypeVar("_Value")
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
    residuals: list[float]
    """Difference of each sample's logarithm to what was predicted, in the order of their features."""
    errors: list[float]
    """Absolute residuals; a stall counts no more than the largest deviation."""


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
        self._next_fit_count, self._next_fit_ns = MIN_SAMPLES, 0
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
        """Predicted logarithm of each sample, ascending, and its latency as a multiple of its level's.

        The prediction is that of a law that was not fitted to it.
        """

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

    def add(self, sample: FeatureSample, arrival_ns: int) -> bool:
        """Add the latency of a request that ran alone and arrived then; return whether the levels may have moved."""
        self._samples.append(sample)
        self._count += 1
        if self._count < self._next_fit_count or arrival_ns < self._next_fit_ns or self._has_shapes:
            return False
        interval = MIN_SAMPLES // 2 if self._count < MAX_SAMPLES_WANTED else FIT_INTERVAL_SAMPLES
        self._next_fit_count, self._next_fit_ns = self._count + interval, arrival_ns + FIT_INTERVAL_NS
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
            time_ns = exp(factor + center)
            yield _name(level), tuple(round(time_ns * ratio) or 1 for ratio in sorted(self._ratios_near(center)))

    def _ratios_near(self, center: float) -> list[float]:
        """Return the deviations of requests that were predicted to take about as long: their spread may vary."""
        predicted, count = self._predicted, max(MIN_NEAR, len(self._predicted) // NEAR_FRACTION)
        first = max(0, min(len(predicted) - count, bisect_left(predicted, (center,)) - count // 2))
        near = predicted[first : first + count]
        return [ratio for _, ratio in near[:: -(-len(near) // MAX_POINTS)]]

    @property
    def device_classes(self) -> Iterable[str]:
        """Device classes of which samples are known."""
        return self._factors

    @property
    def samples(self) -> int:
        """Number of samples to which the law is fitted."""
        return len(self._samples)

    def _fit(self) -> None:
        samples = sorted(self._samples, key=attrgetter("feature"))
        self._factors = _factors_of(samples, self._factors)
        features, apps, classes, logs = (list(column) for column in zip(*samples, strict=True))
        logarithms = [each - self._factors[on] for each, on in zip(logs, classes, strict=True)]
        ways = [(), apps] if len(set(apps)) > 1 else [()]
        explained = [_explain(features, names, logarithms) for names in ways]
        without, found = (min(column, key=_error) for column in zip(*explained, strict=True))
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
        self._of_app = _deviations(apps, logarithms) if found.by_name else {}
        strays = [self._of_app.get(app, 0.0) for app in apps]
        self._curve = monotone_curve(features, [each - stray for each, stray in zip(logarithms, strays, strict=True)])
        predicted = [self._curve(feature) + stray for feature, stray in zip(features, strays, strict=True)]
        # A level is a range of predictions: how far its requests are from its center belongs to their spread.
        from_center = [each - _level(each) * log(LEVEL_RATIO) for each in predicted]
        ratios = map(exp, map(add, from_center, found.residuals))
        self._predicted = sorted(zip(predicted, ratios, strict=True))
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
    first and the last one. `features`: ascending.
    """
    count = len(features)
    most = max(MIN_SAMPLES_PER_KNOT, -(-count // MAX_KNOTS))
    starts = [0]
    while (end := starts[-1] + most) < count and (end := bisect_right(features, features[end - 1], end)) < count:
        starts.append(end)
    if len(starts) > 1 and count - starts[-1] < MIN_SAMPLES_PER_KNOT:
        starts.pop()
    runs = [slice(*each) for each in zip(starts, [*starts[1:], count], strict=True)]
    weights = [run.stop - run.start for run in runs]
    xs = [sum(features[run]) / weight for run, weight in zip(runs, weights, strict=True)]
    means = [_mean_without_strays(logarithms[run]) for run in runs]
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
    ordered = sorted(values)
    middle = (ordered[len(ordered) // 2] + ordered[~(len(ordered) // 2)]) / 2
    low, high = middle - MAX_STRAY, middle + MAX_STRAY
    lower, higher = bisect_left(ordered, low), len(ordered) - bisect_right(ordered, high)
    return (lower * low + sum(ordered[lower : len(ordered) - higher]) + higher * high) / len(ordered)


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
    features: Sequence[float], apps: Sequence[str], logarithms: Sequence[float]
) -> tuple[_Explained, _Explained]:
    """Predict every sample by the other parts of the samples: without the feature, and by it.

    `features`: ascending; `apps`: names to predict by as well; empty: none.
    """
    without, found = [0.0] * len(features), [0.0] * len(features)
    for fold in range(VALIDATION_FOLDS):
        part = slice(fold, None, VALIDATION_FOLDS)
        known, own, wanted = _others(features, part), _others(logarithms, part), logarithms[part]
        if apps:
            names = _others(apps, part)
            of_app = _deviations(names, own)
            own = [each - of_app[app] for app, each in zip(names, own, strict=True)]
            wanted = [each - of_app.get(app, 0.0) for app, each in zip(apps[part], wanted, strict=True)]
        mean, curve = _mean_without_strays(own), monotone_curve(known, own)
        without[part] = [each - mean for each in wanted]
        found[part] = [each - curve(feature) for feature, each in zip(features[part], wanted, strict=True)]
    return _explained(bool(apps), without), _explained(bool(apps), found)


def _explained(by_name: bool, residuals: list[float]) -> _Explained:
    return _Explained(by_name, residuals, [min(abs(each), MAX_STRAY) for each in residuals])


def _others(values: Sequence[_Value], part: slice) -> list[_Value]:
    others = list(values)
    del others[part]
    return others


def _deviations(apps: Sequence[str], logarithms: Sequence[float]) -> dict[str, float]:
    """Return how far each application's mean is from the mean of all; less if few of its requests were seen."""
    mean = _mean_without_strays(logarithms)
    of_app: defaultdict[str, list[float]] = defaultdict(list)
    for app, each in zip(apps, logarithms, strict=True):
        of_app[app].append(each)
    return {app: (_mean_without_strays(own) - mean) * len(own) / (len(own) + 1) for app, own in of_app.items()}


def _factors_of(samples: Sequence[FeatureSample], known: Mapping[str, float]) -> dict[str, float]:
    """Return the factor of each device class: requests of like features on it and on the first one differ by it.

    `samples`: in the order of their features. `known`: former factors; one of a class that was seen again stays, so
    that levels keep their meaning.
    """
    of_class: defaultdict[str, list[FeatureSample]] = defaultdict(list)
    for sample in samples:
        of_class[sample.device_class].append(sample)
    anchor = next((device_class for device_class in known if device_class in of_class), next(iter(of_class)))
    factors = {anchor: 0.0, **known}
    own = of_class.pop(anchor)
    if not of_class:
        return factors
    curve = monotone_curve([each.feature for each in own], [each.log_ns - factors[anchor] for each in own])
    for device_class, others in of_class.items():
        factors[device_class] = median(each.log_ns - curve(each.feature) for each in others)
    return factors


def _level(log_ns: float) -> int:
    return round(log_ns / log(LEVEL_RATIO))


def _name(level: int) -> str:
    return f"{LEVEL_PREFIX}{LEVEL_RATIO**level / 1e6:.3g} ms"
