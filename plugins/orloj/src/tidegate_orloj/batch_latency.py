"""How long a batch takes whose requests are padded to the longest: distributions of the maximum (Orloj, section 4.2).

A batch of k rows takes `c0 + c1 * k * max(l)`, which rises with l: so the batch takes the maximum of what each of its
requests would make it take, and the distribution function of that maximum is the product of the requests' own. It is
equal to the sum over all subsets of Equation 8, and takes k multiplications instead of 2**k.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tidegate.api import NS_PER_MS, ExecutionTimes, Profile

Floats = NDArray[np.float64]
Knots = tuple[Floats, Floats]
"""A distribution function as straight lines: milliseconds, strictly rising, and the shares from 0 to 1 up to them."""
Law = Callable[[int], Knots]
"""How long a batch of so many rows takes whose longest request is one of an application's."""

MOST_BINS = 96
"""The finest histogram of a batch's latency."""
NARROWEST = 0.005
"""The least width of a distribution, as a share of its largest value: one that is a single number is widened to it."""


def law_of_times(times: ExecutionTimes) -> Law:
    """The law of an application whose stand-alone times are known as a distribution."""
    points_ms = np.asarray(times.times_ns, dtype=np.float64) / NS_PER_MS
    # Each point stands for an equal share: as far as half the way to its neighbours.
    between = (points_ms[:-1] + points_ms[1:]) / 2
    first = max(points_ms[0] - (between[0] - points_ms[0] if len(between) else 0.0), 0.0)
    last = points_ms[-1] + (points_ms[-1] - between[-1] if len(between) else 0.0)
    edges_ms = np.concatenate(([first], between, [last]))
    shares = np.linspace(0.0, 1.0, len(edges_ms))

    def knots(rows: int) -> Knots:
        return _rising(times.fixed_ns / NS_PER_MS + times.scale * rows * edges_ms), shares

    return knots


def law_of_profile(profile: Profile) -> Law:
    """The law of requests that are told apart by their shape alone: about what is expected, as far as is planned."""

    def knots(rows: int) -> Knots:
        expected_ms, planned_ms = profile.expected_ns(rows) / NS_PER_MS, profile.planned_ns(rows) / NS_PER_MS
        edges_ms = np.array([max(2 * expected_ms - planned_ms, expected_ms / 2), expected_ms, planned_ms])
        return _rising(edges_ms), np.array([0.0, 0.5, 1.0])

    return knots


class BatchLatency:
    """How long a batch takes, given that a request of an application is in it and that the others are of any.

    `edges_ms`: of the bins, strictly rising. `density[a, i]`: the probability per millisecond of bin i, for a request
    of application a. `mean_ms[a]`: what the batch is expected to take.
    """

    def __init__(self, laws: Sequence[Law], shares: Floats, rows: int, others: int) -> None:
        """`shares`: how often each application comes, of sum 1; `others`: how many requests run with the one."""
        knots = [law(rows) for law in laws]
        edges_ms = np.unique(np.concatenate([edges for edges, _ in knots]))
        own = np.array([np.interp(edges_ms, edges, shares_up_to) for edges, shares_up_to in knots])
        if len(edges_ms) > MOST_BINS + 1:
            kept = _evenly(shares @ own, MOST_BINS)
            edges_ms, own = edges_ms[kept], own[:, kept]
        self.edges_ms: Floats = edges_ms
        self._own: Floats = own
        mixed = shares @ own
        widths, middles = np.diff(edges_ms), (edges_ms[:-1] + edges_ms[1:]) / 2
        mass = np.diff(own * mixed**others, axis=1)
        self.density: Floats = mass / widths
        self.mean_ms: Floats = mass @ middles
        self.mean_ns: NDArray[np.int64] = (self.mean_ms * NS_PER_MS).astype(np.int64)

    def expected_of(self, members: Iterable[int]) -> float:
        """What a batch of these requests is expected to take in ms, each given by the number of its application."""
        longest: Floats = reduce(np.multiply, (self._own[member] for member in members))
        return float(np.diff(longest) @ ((self.edges_ms[:-1] + self.edges_ms[1:]) / 2))


def _rising(edges_ms: Floats) -> Floats:
    """The same edges, strictly rising, and spread at least as far as NARROWEST."""
    least_ms = NARROWEST * max(float(edges_ms[-1]), 1e-6) / (len(edges_ms) - 1)
    widths: Floats = np.maximum(np.diff(edges_ms), least_ms)
    missing_ms = float(np.sum(widths)) - float(edges_ms[-1] - edges_ms[0])  # half of it goes to either side
    rising: Floats = edges_ms[0] - missing_ms / 2 + np.concatenate(([0.0], np.cumsum(widths)))
    return rising


def _evenly(shares: Floats, count: int) -> NDArray[np.intp]:
    """Positions of edges between which about equal shares lie, the first and the last among them."""
    wanted = np.searchsorted(shares, np.linspace(0.0, 1.0, count + 1)[1:-1])
    places: NDArray[np.intp] = np.unique(np.concatenate(([0], wanted, [len(shares) - 1])))
    return places
