"""Axes of plots: scales with ticks at round numbers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, floor, isclose, log10

TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
ABOUT_TICKS = 5
MAX_CHARACTERS = 30
"""Maximum number of characters of tick labels under a narrow chart."""
MIN_SPAN = 0.98
"""Maximum lower end of an axis of fractions, so that small differences near 100 % do not look large."""


@dataclass(frozen=True)
class PlotAxis:
    """Axis of a plot, from `least` to `most`."""

    label: str
    least: float
    most: float
    ticks: tuple[float, ...]
    written: Callable[[float], str]
    """Function that formats the value of a tick."""

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        label: str,
        *,
        least: float | None = None,
        most: float | None = None,
        unit: str = "",
        whole: bool = False,
    ) -> "PlotAxis":
        """Create an axis that contains these values, with round ends.

        `label`: name of the axis; `least`, `most`: ends to use instead; `unit`: suffix of each tick; `whole`: ticks at
        whole numbers only.
        """
        known = [*values, *(end for end in (least, most) if end is not None)] or [0.0, 1.0]
        low, high = min(known) if least is None else least, max(known) if most is None else most
        if high <= low:
            high = low + (abs(low) or 1.0)
        step = _step((high - low) / ABOUT_TICKS)
        if whole:
            step = float(max(1, ceil(step)))
        first = floor(low / step + 1e-9) if least is None else ceil(low / step - 1e-9)
        last = ceil(high / step - 1e-9) if most is None else floor(high / step + 1e-9)
        ticks = tuple(number * step for number in range(first, last + 1))
        low = low if least is not None else ticks[0]
        high = high if most is not None else ticks[-1]
        digits = _digits(step)
        return cls(label, low, high, ticks, lambda value: f"{_no_minus_zero(value):,.{digits}f}{unit}")

    @classmethod
    def shares(cls, values: Iterable[float], label: str, *, from_zero: bool = False) -> "PlotAxis":
        """Create an axis of fractions: up to 100 %, down to a round number below the least value.

        `label`: name of the axis; `from_zero`: begin at 0.
        """
        lowest = 0.0 if from_zero else max(0.0, min([*values, MIN_SPAN]))
        percents = cls.over([100 * lowest], label, least=0.0 if from_zero else None, most=100.0, unit=" %")
        least = max(0.0, percents.least)
        ticks = tuple(tick / 100 for tick in percents.ticks if tick / 100 >= least / 100)
        return cls(label, least / 100, 1.0, ticks, lambda value: percents.written(100 * value))

    def place(self, value: float) -> float:
        """Return the position of a value: 0 at the axis's least, 1 at its most; outside values exceed these."""
        return (value - self.least) / (self.most - self.least)

    def is_crowded(self, taken: float = 0.0) -> bool:
        """Whether the tick labels do not fit under a narrow chart, so that every second one is left out there.

        `taken`: characters of the width that the labels of the other axis take beyond numbers.
        """
        return max(map(len, map(self.written, self.ticks)), default=0) * len(self.ticks) > MAX_CHARACTERS - taken

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return -1e-9 <= self.place(value) <= 1 + 1e-9


def _step(rough: float) -> float:
    """The next round number: 1, 2, 2.5, 5 or 10 times a power of ten."""
    power = 10.0 ** floor(log10(rough))
    return next(step * power for step in TICK_STEPS if step * power >= rough * (1 - 1e-9))


def _digits(step: float) -> int:
    """Decimals that a multiple of the step needs."""
    return next(digits for digits in range(16) if isclose(round(step, digits), step, rel_tol=1e-6))


def _no_minus_zero(value: float) -> float:
    return 0.0 if abs(value) < 1e-12 else value
