"""Latency of batches that are padded to their longest request: distribution of a maximum (Orloj, section 4.2).

A batch of k rows takes `c0 + c1 * k * max(l)`, which grows with l. So its latency is the maximum of the latencies that
each request alone would cause, and the distribution function of the maximum is the product of theirs. This equals the
sum over all subsets of Equation 8 and takes k multiplications instead of 2**k.

All requests of a batch share the noise, so it multiplies the maximum.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from math import ceil, erf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.api import NS_PER_MS, LatencyDistribution, Profile

Floats = NDArray[np.float64]
Knots = tuple[Floats, Floats]
"""Piecewise linear distribution function: ms, strictly ascending, and cumulative probabilities from 0 to 1."""


class BatchLaw(NamedTuple):
    """Law of batches whose longest request is of one application."""

    knots: Callable[[int], Knots]
    """Function from rows to the distribution of the latency without noise."""
    noise_cv: float = 0.0
    """Coefficient of variation of the noise."""
    means_ms: Callable[[int], float] | None = None
    """Function from rows to the mean of `knots` in ms, if known without them."""

    def mean_ms(self, rows: int) -> float:
        """Return the mean stand-alone latency in ms of a request of `rows` rows."""
        if self.means_ms:
            return self.means_ms(rows)
        edges_ms, shares = self.knots(rows)
        return float(np.diff(shares) @ (edges_ms[:-1] + edges_ms[1:])) / 2


MAX_BINS = 96
"""Maximum number of bins of a batch's latency histogram."""
MAX_EDGES = 4 * MAX_BINS
"""Number of edges of several distributions above which they are made coarser."""
MAX_POINTS = 64
"""Maximum number of points of a distribution of several applications."""
MAX_SIZES = 32
"""Number of latest batch sizes whose knots a law keeps."""
MIN_RELATIVE_WIDTH = 0.005
"""Minimum width of a distribution as a fraction of its largest value; a constant is widened to it."""
MIN_NOISE_CV = 0.01
"""Noise below this coefficient of variation is ignored."""
FARTHEST, STEPS = 4.0, 128
"""Range of the tabulated normal distribution function in standard deviations, and steps for each."""
_NORMAL: Floats = np.array(
    [(1 + erf(step / STEPS / sqrt(2))) / 2 for step in range(round(-FARTHEST * STEPS), round(FARTHEST * STEPS) + 1)]
)


def law_of_several(times: Sequence[LatencyDistribution], shares: Sequence[float]) -> BatchLaw:
    """Return the law of several similar applications. `shares`: their relative frequencies."""
    weights = np.asarray(shares) / sum(shares)
    fixed_ms = float(weights @ [each.fixed_ns for each in times]) / NS_PER_MS
    # What a row adds: alone each takes what it did, whatever its own fixed cost is.
    points = [np.asarray(each.times_ns, np.float64) * each.scale + each.fixed_ns for each in times]
    row_ms = np.maximum(np.concatenate(points) / NS_PER_MS - fixed_ms, 0.0)
    each_share = np.repeat(weights / [len(each) for each in points], [len(each) for each in points])
    if len(times) > 1:
        order = np.argsort(row_ms, kind="stable")
        row_ms, each_share = row_ms[order], each_share[order]
        kept = _evenly(np.concatenate(([0.0], np.cumsum(each_share))), MAX_POINTS)
        each_share = np.add.reduceat(each_share, kept[:-1])
        row_ms = row_ms[(kept[:-1] + kept[1:] - 1) // 2]
    # Each point stands for a share: as far as half the way to its neighbors.
    between = (row_ms[:-1] + row_ms[1:]) / 2
    first = max(row_ms[0] - (between[0] - row_ms[0] if len(between) else 0.0), 0.0)
    last = row_ms[-1] + (row_ms[-1] - between[-1] if len(between) else 0.0)
    edges_ms = np.concatenate(([first], between, [last]))
    up_to = np.concatenate(([0.0], np.cumsum(each_share)))
    up_to /= up_to[-1]
    mean_ms = float(np.diff(up_to) @ (edges_ms[:-1] + edges_ms[1:])) / 2

    @lru_cache(MAX_SIZES)
    def knots(rows: int) -> Knots:
        return _rising(fixed_ms + rows * edges_ms), up_to

    return BatchLaw(knots, max(each.noise_cv for each in times), lambda rows: fixed_ms + rows * mean_ms)


def law_of_profile(profile: Profile, quantile: float, noise_cv: float | None = None) -> BatchLaw:
    """Return the law of requests that differ by shape only: around the expected latency, up to the upper one.

    `quantile`: quantile that the upper latency covers. `noise_cv`: observed coefficient of variation of the noise;
    None: half of the margin's variance is noise.
    """
    most = profile.max_rows
    margin_cv = (profile.upper_ns(most) / profile.expected_ns(most) - 1) / NormalDist().inv_cdf(quantile)
    noise_cv = margin_cv * sqrt(0.5) if noise_cv is None else min(noise_cv, margin_cv)
    own = sqrt(1 - (noise_cv / margin_cv) ** 2) if margin_cv else 0.0

    def edges_ms(rows: int) -> tuple[float, float, float]:
        expected_ms = profile.expected_ns(rows) / NS_PER_MS
        margin_ms = own * (profile.upper_ns(rows) / NS_PER_MS - expected_ms)
        return max(expected_ms - margin_ms, expected_ms / 2), expected_ms, expected_ms + margin_ms

    @lru_cache(MAX_SIZES)
    def knots(rows: int) -> Knots:
        return _rising(np.array(edges_ms(rows))), np.array([0.0, 0.5, 1.0])

    def mean_ms(rows: int) -> float:
        least_ms, expected_ms, most_ms = edges_ms(rows)
        return (least_ms + 2 * expected_ms + most_ms) / 4

    return BatchLaw(knots, noise_cv, mean_ms)


class BatchLatency:
    """Latency distribution of a batch that contains a request of a given application and others of any.

    `edges_ms`: edges of the bins, strictly ascending. `density[..., a, i]`: probability per ms of bin i for a request
    of application a. `mean_ms[..., a]`: expected latency of the batch.
    """

    def __init__(self, laws: Sequence[BatchLaw], shares: Floats, rows: int, others: int) -> None:
        """Compute the distribution.

        `shares[..., a]`: frequency of each application, with sum 1. `rows`: rows of the batch. `others`: number of
        requests besides the one in question. Batches with other mixtures (leading dimensions) have the same bins.
        """
        knots = [law.knots(rows) for law in laws]
        every = ceil(sum(len(edges) for edges, _ in knots) / MAX_EDGES)
        edges_ms = np.unique(np.concatenate([part for edges, _ in knots for part in (edges[:-1:every], edges[-1:])]))
        own = np.array([np.interp(edges_ms, edges, shares_up_to) for edges, shares_up_to in knots])
        mean_shares = shares.reshape(-1, len(laws)).mean(axis=0)
        if len(edges_ms) > MAX_BINS + 1:
            kept = _evenly(mean_shares @ own, MAX_BINS)
            edges_ms, own = edges_ms[kept], own[:, kept]
        middles_ms: Floats = (edges_ms[:-1] + edges_ms[1:]) / 2
        up_to = own * ((shares @ own) ** others)[..., None, :]
        mass: Floats = up_to[..., 1:] - up_to[..., :-1]
        self.mean_ms: Floats = mass @ middles_ms
        noise_cv = sqrt(sum(share * law.noise_cv**2 for law, share in zip(laws, mean_shares.tolist(), strict=True)))
        if noise_cv > MIN_NOISE_CV:
            edges_ms, fractions = _scattered(middles_ms, noise_cv)
            mass = mass @ fractions
        mass /= edges_ms[1:] - edges_ms[:-1]
        self.edges_ms: Floats = edges_ms
        self.density = mass
        self.mean_ns: NDArray[np.int64] = (self.mean_ms * NS_PER_MS).astype(np.int64)


def expected_ms(laws: Iterable[BatchLaw], rows: int) -> float:
    """Return the expected latency in ms of a batch whose requests have these laws."""
    counts = Counter(laws)
    knots = [law.knots(rows) for law in counts]
    edges_ms = np.unique(np.concatenate([edges for edges, _ in knots]))
    own = (np.interp(edges_ms, *each) ** count for each, count in zip(knots, counts.values(), strict=True))
    longest: Floats = reduce(np.multiply, own)
    return float(np.diff(longest) @ (edges_ms[:-1] + edges_ms[1:])) / 2


def _scattered(times_ms: Floats, noise_cv: float) -> tuple[Floats, Floats]:
    """Bins for times to which noise is added, and the fraction of each time (row) that falls into each (column).

    Noise is a log-normal factor of mean 1.
    """
    log_std = sqrt(log(1 + noise_cv * noise_cv))
    centers = np.log(np.maximum(times_ms, 1e-6)) - log_std**2 / 2
    edges = np.linspace(centers[0] - log_std * FARTHEST, centers[-1] + log_std * FARTHEST, MAX_BINS + 1)
    steps = np.rint((edges - centers[:, None]) * (STEPS / log_std) + FARTHEST * STEPS)
    below: Floats = _NORMAL[np.clip(steps, 0, len(_NORMAL) - 1).astype(np.intp)]
    below[:, 0], below[:, -1] = 0.0, 1.0
    return np.exp(edges), np.diff(below, axis=1)


def _rising(edges_ms: Floats) -> Floats:
    """The same edges, strictly rising, and spread at least as far as NARROWEST."""
    least_ms = MIN_RELATIVE_WIDTH * max(float(edges_ms[-1]), 1e-6) / (len(edges_ms) - 1)
    widths: Floats = np.maximum(edges_ms[1:] - edges_ms[:-1], least_ms)
    missing_ms = float(widths.sum()) - float(edges_ms[-1] - edges_ms[0])  # half of it goes to either side
    rising: Floats = np.zeros(len(edges_ms))
    widths.cumsum(out=rising[1:])
    rising += edges_ms[0] - missing_ms / 2
    return rising


def _evenly(shares: Floats, count: int) -> NDArray[np.intp]:
    """Positions of edges between which about equal shares lie, the first and the last among them."""
    wanted = np.searchsorted(shares, np.linspace(0.0, 1.0, count + 1)[1:-1])
    places: NDArray[np.intp] = np.unique(np.concatenate(([0], wanted, [len(shares) - 1])))
    return places
