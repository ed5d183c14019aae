"""Registers PARIS and ELSA."""

from tidegate.api import PolicySpec, hookimpl


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Offer ELSA by name."""
    return []
