"""Offers the policy to Tidegate; the entry point in pyproject.toml names this module."""

from tidegate.api import PolicySpec, hookimpl
from tidegate_template.policy import Template


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Offer it by the name that `tidegate serve --policy` selects it with."""
    return [PolicySpec("template", "Earliest deadline first; what cannot be on time is dropped", Template)]
