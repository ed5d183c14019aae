"""Distributions of what a request brings along: its rows, or the milliseconds that it takes beyond its batch."""

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from math import exp, log, sqrt
from random import Random
from statistics import NormalDist
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tidegate.workload.section import ScenarioSection

Draw = Callable[[], float]


class Distribution(ScenarioSection):
    """Something to draw non-negative numbers from."""

    @abstractmethod
    def drawing_from(self, rng: Random) -> Draw:
        """A function that draws the next number from this generator."""

    @abstractmethod
    def quantile(self, share: float) -> float:
        """Return the quantile of the distribution; 0 < share < 1."""

    @property
    @abstractmethod
    def smallest(self) -> float:
        """No draw is below this."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """No draw is above this; infinite where there is no such bound."""


class Constant(Distribution):
    """Always the same; in a file simply the number."""

    distribution: Literal["constant"] = "constant"
    value: float = Field(ge=0)

    def drawing_from(self, rng: Random) -> Draw:
        """Draws nothing from the generator."""
        return lambda: self.value

    def quantile(self, share: float) -> float:
        """The value."""
        return self.value

    @property
    def smallest(self) -> float:
        """The value."""
        return self.value

    @property
    def largest(self) -> float:
        """The value."""
        return self.value


class LogNormal(Distribution):
    """A long tail: most are small, a few are large."""

    distribution: Literal["lognormal"]
    mean: float = Field(gt=0)
    cv: float = Field(gt=0, description="Coefficient of variation: standard deviation over mean")

    def drawing_from(self, rng: Random) -> Draw:
        """Return a log-normal distribution with this mean and coefficient of variation (of the values, not of their
        logarithms)."""
        mu, sigma = lognormal_parameters(self.mean, self.cv)
        return lambda: rng.lognormvariate(mu, sigma)

    def quantile(self, share: float) -> float:
        """That of the logarithms, which are normal."""
        mu, sigma = lognormal_parameters(self.mean, self.cv)
        return exp(NormalDist(mu, sigma).inv_cdf(share))

    @property
    def smallest(self) -> float:
        """Zero is never reached, but approached."""
        return 0.0

    @property
    def largest(self) -> float:
        """There is none."""
        return float("inf")


class Normal(Distribution):
    """A bell about its mean: one mode of a mixture. What would be negative is drawn anew."""

    distribution: Literal["normal"]
    mean: float = Field(gt=0)
    std: float = Field(gt=0, description="Standard deviation, before the negative numbers are left out")

    def drawing_from(self, rng: Random) -> Draw:
        """One or more numbers of the generator for each draw."""
        mean, std, gauss = self.mean, self.std, rng.gauss

        def draw() -> float:
            while (drawn := gauss(mean, std)) < 0:
                pass
            return drawn

        return draw

    def quantile(self, share: float) -> float:
        """That of the part of the bell that is not negative."""
        whole = NormalDist(self.mean, self.std)
        negative = whole.cdf(0)
        return max(0.0, whole.inv_cdf(negative + share * (1 - negative)))

    @property
    def smallest(self) -> float:
        """Zero."""
        return 0.0

    @property
    def largest(self) -> float:
        """There is none."""
        return float("inf")


class ValueTable(Distribution):
    """Values with weights: a histogram of what was observed."""

    distribution: Literal["table"]
    values: list[Annotated[float, Field(ge=0)]] = Field(min_length=1)
    weights: list[Annotated[float, Field(ge=0)]] | None = Field(default=None, description="Default: equal")

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.values)} values have {len(self.weights)} weights: give one for each")
        if self.weights is not None and not sum(self.weights) > 0:
            raise ValueError("all weights are zero: give one that is not")
        return self

    def drawing_from(self, rng: Random) -> Draw:
        """One number of the generator for each draw."""
        values = self.values
        choose = choosing_from(self.weights or [1.0] * len(values), rng)
        return lambda: values[choose()]

    def quantile(self, share: float) -> float:
        """The smallest value that, with those below it, has so much of the weight."""
        weights = self.weights or [1.0] * len(self.values)
        values, rising = zip(*sorted(zip(self.values, weights, strict=True)), strict=True)
        bounds = list(accumulate(rising))
        return float(values[min(bisect_left(bounds, share * bounds[-1]), len(values) - 1)])

    @property
    def smallest(self) -> float:
        """The smallest value, whatever its weight."""
        return min(self.values)

    @property
    def largest(self) -> float:
        """The largest value, whatever its weight."""
        return max(self.values)


def _from_number(given: object) -> object:
    return {"distribution": "constant", "value": given} if isinstance(given, int | float) else given


AnyDistribution = Annotated[
    Annotated[Constant | LogNormal | Normal | ValueTable, Field(discriminator="distribution")],
    BeforeValidator(_from_number),
]
"""A distribution as a field of a file: a number, or a section that names its `distribution`."""


def choosing_from(weights: list[float], rng: Random) -> Callable[[], int]:
    """A function that draws an index with the given weights, whose sum is positive."""
    bounds = list(accumulate(weights))
    total, last, uniform = bounds[-1], len(bounds) - 1, rng.random
    return lambda: min(bisect_right(bounds, uniform() * total), last)


def lognormal_parameters(mean: float, cv: float) -> tuple[float, float]:
    """The mean and standard deviation of the logarithm, from those of the numbers themselves."""
    variance = log(1 + cv * cv)
    return log(mean) - variance / 2, sqrt(variance)
