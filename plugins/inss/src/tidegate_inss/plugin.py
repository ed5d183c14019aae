"""Registers the planners of MPS shares."""

from tidegate.api import PlannerSpec, hookimpl


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Offer the planners."""
    return []
