"""Latency distribution of one application's requests that run alone, for models whose latency depends on the data."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from math import ceil, exp, hypot, log, sqrt
from operator import gt, mul, sub
from statistics import NormalDist

import msgspec

from tidegate.api.profile import NS_PER_MS, Profile

MAX_POINTS = 256
"""Approximate number of points, over all distributions, from which the latency of batches is computed."""


class LatencyDistribution(msgspec.Struct, frozen=True):
    """Distribution of the stand-alone latency of one application's requests to a model, on one class of workers.

    A batch of k requests is padded to its longest request. It takes `fixed_ns + scale * k * max(times)`, times noise of
    mean 1 (Orloj, section 4.1, with c0 and c1). If c0 is known, the times are stretched about their mean to fit this
    law.
    """

    model: str
    app: str
    """Application tag of the requests (`Request.app`)."""
    device_class: str
    """Device class of the workers on which the times were measured."""
    times_ns: tuple[int, ...]
    """Equally probable times in ns, ascending, at least one."""
    fixed_ns: float = 0.0
    """Fixed latency of a batch in ns: c0."""
    scale: float = 1.0
    """Latency that a request adds in a batch, as a multiple of its own time: c1."""
    noise_cv: float = 0.0
    """Coefficient of variation of the noise that all requests of a batch share; `times_ns` do not contain it."""

    @property
    def mean_ns(self) -> float:
        """Mean of the times, in ns."""
        return sum(self.times_ns) / len(self.times_ns)

    def expected_batch_ns(self, requests: int) -> float:
        """Return the expected latency, in ns, of a batch of `requests` requests: c0 + c1 * k * E[max of k]."""
        count, longest_ns = len(self.times_ns), 0.0
        for rank, time_ns in enumerate(self.times_ns):
            longest_ns += time_ns * (((rank + 1) / count) ** requests - (rank / count) ** requests)
        return self.fixed_ns + self.scale * requests * longest_ns

    @staticmethod
    def profile_of_batches(
        among: Sequence["LatencyDistribution"],
        shares: Mapping[str, float],
        like: Profile,
        quantile: float,
        *,
        most_points: int = MAX_POINTS,
    ) -> Profile:
        """Return the profile of batches whose requests are a random mix of these applications (Orloj, 4.1, 4.2).

        A batch of k takes `c0 + c1 * k * longest`; the longest of k is at most t with probability `F(t) ** k`. The
        expected latency is its mean; the upper latency its quantile, plus the quantile of the noise as an independent
        deviation.

        `shares`: relative frequency by application, positive, in any unit. `like`: profile whose partition, class,
        shape and rows the result takes. `quantile`: between 0 and 1. `most_points`: approximate number of times to use.
        Raises ValueError if `among` is empty.
        """
        if not among:
            raise ValueError("no applications are given")
        every = ceil(sum(len(times.times_ns) for times in among) / most_points)
        drawn = []
        for times in among:
            points = times.times_ns[(len(times.times_ns) - 1) % every :: every]  # the longest among them
            drawn += [(times.fixed_ns, times.scale * point, shares[times.app] / len(points)) for point in points]
        total = sum(share for _, _, share in drawn)
        noise_cv = sum(times.noise_cv * shares[times.app] for times in among) / total
        # The quantile of a log-normal factor of mean 1.
        log_std = sqrt(log(1 + noise_cv * noise_cv))
        noise_margin = max(0.0, exp(log_std * (NormalDist().inv_cdf(quantile) - log_std / 2)) - 1) if noise_cv else 0.0
        expected_ms, upper_ms = {}, {}
        up_to: list[float] = []
        for rows in _sizes(like.max_rows):
            taken_ns = [fixed_ns + rows * each_ns for fixed_ns, each_ns, _ in drawn]
            if not up_to or any(map(gt, taken_ns, islice(taken_ns, 1, None))):  # another order than with fewer rows
                drawn = [drawn[at] for at in sorted(range(len(drawn)), key=taken_ns.__getitem__)]
                taken_ns.sort()
                up_to = [min(1.0, each) for each in accumulate(share / total for _, _, share in drawn)]
            within = [each**rows for each in up_to]  # all of them take no longer: the distribution of the longest
            expected_ns = sum(map(mul, taken_ns, map(sub, within, [0.0, *within])))
            longest_ns = taken_ns[min(bisect_left(within, quantile), len(within) - 1)]
            margin_ns = hypot(max(0.0, longest_ns - expected_ns), noise_margin * expected_ns)
            expected_ms[rows], upper_ms[rows] = expected_ns / NS_PER_MS, (expected_ns + margin_ns) / NS_PER_MS
        return Profile.from_points(
            like.partition,
            expected_ms,
            upper_ms,
            max_rows=like.max_rows,
            device_class=like.device_class,
            shape=like.shape,
        )


def _sizes(max_rows: int) -> list[int]:
    """The batch sizes that are computed: each about half as large again; between them lie straight lines."""
    usual = {rows for power in range(max_rows.bit_length()) for rows in (1 << power, 3 << power >> 1)}
    return sorted({rows for rows in usual if rows <= max_rows} | {max_rows})
