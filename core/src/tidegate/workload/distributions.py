"""Distributions of rows of a request, and of its additional latency; independent random streams from one seed."""

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from math import exp, inf, log, sqrt
from random import Random
from statistics import NormalDist
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from tidegate.api.planner import DocumentSection

Draw = Callable[[], float]


class Distribution(DocumentSection):
    """A distribution of non-negative numbers."""

    @abstractmethod
    def drawing_from(self, rng: Random) -> Draw:
        """Return a function that draws numbers from the generator `rng`."""

    @abstractmethod
    def quantile(self, share: float) -> float:
        """Return the quantile of the distribution at `share`, with 0 < share < 1."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of all draws; the upper one is infinite if there is none."""
        return 0.0, inf


class Constant(Distribution):
    """Distribution of a single value; in a file simply the number."""

    distribution: Literal["constant"] = "constant"
    value: float = Field(ge=0)

    @model_serializer
    def _to_number(self) -> float:
        return self.value

    def drawing_from(self, rng: Random) -> Draw:
        """Return a function that returns the value and draws nothing."""
        return lambda: self.value

    def quantile(self, share: float) -> float:
        """Return the value, whatever the share."""
        return self.value

    @property
    def bounds(self) -> tuple[float, float]:
        """The value itself, twice."""
        return self.value, self.value


class LogNormal(Distribution):
    """Log-normal distribution: a long tail of large values."""

    distribution: Literal["lognormal"]
    mean: float = Field(gt=0)
    cv: float = Field(gt=0, description="Coefficient of variation: standard deviation over mean")

    def drawing_from(self, rng: Random) -> Draw:
        """Return a function that draws numbers of this mean and coefficient of variation.

        Both are of the numbers, not of their logarithms.
        """
        mu, sigma = lognormal_parameters(self.mean, self.cv)
        return lambda: rng.lognormvariate(mu, sigma)

    def quantile(self, share: float) -> float:
        """Return the quantile of the distribution at `share`."""
        mu, sigma = lognormal_parameters(self.mean, self.cv)
        return exp(NormalDist(mu, sigma).inv_cdf(share))


class Normal(Distribution):
    """Normal distribution without its negative part: one mode of a mixture."""

    distribution: Literal["normal"]
    mean: float = Field(gt=0)
    std: float = Field(gt=0, description="Standard deviation, before negative numbers are discarded")

    def drawing_from(self, rng: Random) -> Draw:
        """Return a function that draws until a number is not negative."""
        mean, std, gauss = self.mean, self.std, rng.gauss

        def draw() -> float:
            while (drawn := gauss(mean, std)) < 0:
                pass
            return drawn

        return draw

    def quantile(self, share: float) -> float:
        """Return the quantile of the non-negative part at `share`."""
        whole = NormalDist(self.mean, self.std)
        negative = whole.cdf(0)
        return max(0.0, whole.inv_cdf(negative + share * (1 - negative)))


class ValueTable(Distribution):
    """Distribution of values with weights, such as an observed histogram."""

    distribution: Literal["table"]
    values: list[Annotated[float, Field(ge=0)]] = Field(min_length=1)
    weights: list[Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="Weight of each value; default: equal"
    )

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.values)} values have {len(self.weights)} weights: give one for each")
        if self.weights is not None and not sum(self.weights) > 0:
            raise ValueError("all weights are zero: give one that is not")
        return self

    def drawing_from(self, rng: Random) -> Draw:
        """Return a function that draws one random number for each value."""
        values = self.values
        choose = choosing_from(self.weights or [1.0] * len(values), rng)
        return lambda: values[choose()]

    def quantile(self, share: float) -> float:
        """Return the smallest value whose cumulative weight reaches the share."""
        weights = self.weights or [1.0] * len(self.values)
        values, rising = zip(*sorted(zip(self.values, weights, strict=True)), strict=True)
        bounds = list(accumulate(rising))
        return float(values[min(bisect_left(bounds, share * bounds[-1]), len(values) - 1)])

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value, whatever their weights."""
        return min(self.values), max(self.values)


def _from_number(given: object) -> object:
    return {"distribution": "constant", "value": given} if isinstance(given, int | float) else given


AnyDistribution = Annotated[
    Annotated[Constant | LogNormal | Normal | ValueTable, Field(discriminator="distribution")],
    BeforeValidator(_from_number),
]
"""Distribution as a field of a scenario: a number, or a section that names its `distribution`."""


def choosing_from(weights: list[float], rng: Random) -> Callable[[], int]:
    """Return a function that draws an index with these weights, whose sum is positive."""
    bounds = list(accumulate(weights))
    total, last, uniform = bounds[-1], len(bounds) - 1, rng.random
    return lambda: min(bisect_right(bounds, uniform() * total), last)


def lognormal_parameters(mean: float, cv: float) -> tuple[float, float]:
    """Return mean and standard deviation of the logarithm, from mean and coefficient of variation `cv` of the
    values.
    """
    variance = log(1 + cv * cv)
    return log(mean) - variance / 2, sqrt(variance)


def stream(seed: int, *names: str | int) -> Random:
    """Return the generator of one purpose, e.g. `stream(1, "rows", "resnet50")`; the same in every process."""
    return Random("/".join(map(str, (seed, *names))))  # text is hashed by SHA-512, not by `hash`
