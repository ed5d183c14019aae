"""Registers Symphony."""

from tidegate.api import PolicySpec, hookimpl
from tidegate_symphony.policy import Symphony


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Offer Symphony by name."""
    return [PolicySpec("symphony", "Deferred batching: wait until one more request could not join in time", Symphony)]
