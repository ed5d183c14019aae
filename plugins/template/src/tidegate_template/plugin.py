"""Registers the policy with Tidegate; the entry point in pyproject.toml names this module."""

from tidegate.api import PolicySpec, hookimpl
from tidegate_template.policy import Template


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return the policies of this distribution, by the names for `tidegate serve --policy`."""
    return [PolicySpec("template", "Earliest deadline first; drops requests that will miss their deadline", Template)]
