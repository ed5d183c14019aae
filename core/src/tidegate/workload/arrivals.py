"""Arrival processes: draw arrival times of requests from a given random generator."""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import count, pairwise
from math import inf
from random import Random

import msgspec

NS_PER_S = 1_000_000_000


class Arrivals(msgspec.Struct, frozen=True, tag_field="process"):
    """Arrival process with a mean rate; subclasses define the gaps."""

    rate_rps: float
    """Mean arrivals per second, positive."""

    def __post_init__(self) -> None:
        """Refuse a rate that no clock could follow."""
        if not 0 < self.rate_rps < inf:
            raise ValueError(f"rate_rps must be positive and finite, not {self.rate_rps}")

    def instants_ns(self, duration_ns: int, rng: Random) -> Iterator[int]:
        """Return arrival times in [0, duration_ns), in ns, ascending. Equal seeds of `rng` give equal arrivals."""
        for at_s in self._instants_s(rng):
            at_ns = at_s * NS_PER_S
            if at_ns >= duration_ns:  # before rounding down: a gap of a very low rate may be infinite
                return
            yield int(at_ns)

    @abstractmethod
    def _instants_s(self, rng: Random) -> Iterator[float]:
        """Draw arrivals for ever, in seconds from the start."""


class Poisson(Arrivals, frozen=True, tag="poisson"):
    """Poisson arrivals: exponential gaps, coefficient of variation 1."""

    def _instants_s(self, rng: Random) -> Iterator[float]:
        at_s = 0.0
        while True:
            at_s += rng.expovariate(self.rate_rps)
            yield at_s


class Gamma(Arrivals, frozen=True, tag="gamma"):
    """Arrivals with gamma-distributed gaps, coefficient of variation 1 / sqrt(shape)."""

    shape: float
    """Shape parameter, positive: below 1 bursts, 1 Poisson, above 1 steadier."""

    def __post_init__(self) -> None:
        """Refuse a shape that the distribution does not have."""
        super().__post_init__()
        if not 0 < self.shape < inf:
            raise ValueError(f"shape must be positive and finite, not {self.shape}")

    def _instants_s(self, rng: Random) -> Iterator[float]:
        mean_gap_of_shape_s = 1 / (self.rate_rps * self.shape)
        at_s = 0.0
        while True:
            at_s += rng.gammavariate(self.shape, mean_gap_of_shape_s)
            yield at_s


class Uniform(Arrivals, frozen=True, tag="uniform"):
    """Evenly spaced arrivals, the first at once."""

    def _instants_s(self, rng: Random) -> Iterator[float]:
        return (index / self.rate_rps for index in count())


class VaryingRate(Arrivals, frozen=True, tag="varying"):
    """Arrival process whose rate changes by steps: a unit-rate process stretched in time.

    `rate_rps` multiplies the rate of every step.
    """

    unit: Poisson | Gamma | Uniform
    """A process of rate 1."""
    steps: tuple[tuple[float, float], ...]
    """Steps (start in seconds, arrivals per second from then on), the first at 0; the last one has no end."""

    def __post_init__(self) -> None:
        """Refuse steps out of order, and rates that are none."""
        super().__post_init__()
        if self.unit.rate_rps != 1:
            raise ValueError(f"unit: its rate_rps must be 1, not {self.unit.rate_rps}")
        starts = [from_s for from_s, _ in self.steps]
        if not starts or starts[0] != 0 or any(not earlier < later < inf for earlier, later in pairwise(starts)):
            raise ValueError(f"steps: they must begin at 0 s and rise, not {starts}")
        if not all(0 <= rate_rps < inf for _, rate_rps in self.steps):
            raise ValueError("steps: the rate of every step must be finite and not negative")

    def _instants_s(self, rng: Random) -> Iterator[float]:
        steps = iter(self.steps)
        from_s, rate_rps = next(steps)
        following = next(steps, None)
        done = 0.0  # expected arrivals before the step
        for expected in self.unit._instants_s(rng):
            while following is not None:
                in_step = (following[0] - from_s) * rate_rps * self.rate_rps
                if expected < done + in_step:
                    break
                done += in_step
                (from_s, rate_rps), following = following, next(steps, None)
            if rate_rps == 0:
                return
            yield from_s + (expected - done) / (rate_rps * self.rate_rps)
