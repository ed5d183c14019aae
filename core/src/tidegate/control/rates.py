"""What controllers that plan for rates have in common: whose rates these are, and when they are others."""

from collections.abc import Iterable, Mapping
from math import sqrt

from tidegate.documents import Layout

DEVIATIONS = 3
"""Chance explains a difference of so many standard deviations of a Poisson count."""


def check_models(planned: Iterable[str], layout: Layout) -> None:
    """Raises ValueError where the models of a controller's problem are not those that the layout serves."""
    if odd := set(planned) ^ {model.name for model in layout.models}:
        raise ValueError(
            f"problem: its models are not those that are served: {min(odd)!r} is in one of the two only: give the "
            "problem that the layout was planned from"
        )


def have_drifted(
    rates_rps: Mapping[str, float], expected_rps: Mapping[str, float], period_s: float, *, drift: float
) -> bool:
    """Whether some model's rate is off what was expected by more than the share `drift`, and by more than chance.

    `rates_rps`: what came in a period of `period_s` seconds, by model; `expected_rps` has the same models.
    """
    for name, rate in rates_rps.items():
        expected = expected_rps[name]
        chance = DEVIATIONS * sqrt(max(expected, rate) / period_s)
        if abs(rate - expected) > max(drift * expected, chance):
            return True
    return False
