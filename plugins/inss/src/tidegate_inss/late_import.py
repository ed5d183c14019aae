"""What needs numpy, imported when it runs: who only reads plans, or lists plugins, does not wait for it."""

from importlib import import_module
from typing import Any

from tidegate.api import PlanningError


def imported_late(module: str, name: str) -> Any:  # noqa: ANN401 - whatever is there
    """What has this name in a module of this package. Raises PlanningError where its libraries are missing."""
    try:
        found = import_module(f"tidegate_inss.{module}")
    except ModuleNotFoundError as error:
        raise PlanningError(f'planning needs {error.name}: pip install "tidegate-inss[planner]"') from error
    return getattr(found, name)
