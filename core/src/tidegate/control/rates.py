"""Helpers of controllers that plan for request rates: estimated rates, and whether they have drifted."""

from collections.abc import Iterable, Mapping
from math import sqrt

from tidegate.schemas import Layout

MAX_CHANCE_DEVIATIONS = 3
"""Maximum difference of two rates that counts as chance, in standard deviations of a Poisson count."""


def check_models(planned: Iterable[str], layout: Layout) -> None:
    """Raise ValueError if the models of a controller's problem are not those of the layout."""
    if odd := set(planned) ^ {model.name for model in layout.models}:
        raise ValueError(
            f"problem: its models are not those that are served: {min(odd)!r} is in one of the two only: give the "
            "problem that the layout was planned from"
        )


def have_drifted(
    rates_rps: Mapping[str, float], expected_rps: Mapping[str, float], period_s: float, *, drift: float
) -> bool:
    """Whether some model's rate differs from the expected one by more than the fraction `drift` and by more than
    chance.

    `rates_rps`: observed rates by model over a period of `period_s` seconds; `expected_rps` has the same models.
    """
    for name, rate in rates_rps.items():
        expected = expected_rps[name]
        chance = MAX_CHANCE_DEVIATIONS * sqrt(max(expected, rate) / period_s)
        if abs(rate - expected) > max(drift * expected, chance):
            return True
    return False


class SteadyRates:
    """Mean rates since the last drift: chance averages out, and a jump starts a new average."""

    def __init__(self, *, remembered_s: float = 30.0) -> None:
        """Create an estimator without observations.

        `remembered_s`: time constant in seconds; older observations count less, so the mean follows slow changes.
        """
        self._remembered_s = remembered_s
        self._seen: dict[str, tuple[float, float]] = {}
        """How much came, in how many seconds, by model."""

    def observe(self, rates: Mapping[str, float], period_s: float) -> Mapping[str, float]:
        """Return the estimated rates, in requests per second by model, after a period of `period_s` seconds with
        `rates`."""
        for name, rate in rates.items():
            came, seconds = self._seen.get(name, (0.0, 0.0))
            if seconds and have_drifted({name: rate}, {name: came / seconds}, period_s, drift=0.0):
                came = seconds = 0.0
            kept = min(1.0, self._remembered_s / (seconds + period_s))
            self._seen[name] = (came + rate * period_s) * kept, (seconds + period_s) * kept
        return {name: came / seconds for name, (came, seconds) in self._seen.items()}
