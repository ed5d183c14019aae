"""Registers the baselines."""

from tidegate.api import PolicySpec, hookimpl
from tidegate_baselines.fifs import Fifs


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Offer every baseline by its name."""
    return [PolicySpec("fifs", "First idle, first served: eager batches, no deadlines", Fifs)]
