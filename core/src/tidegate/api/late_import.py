"""What needs libraries that policies do without, imported when it runs: most planners."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tidegate.api.planner import PlanningError


class LateImport:
    """A function whose module is imported when it is called for the first time, or before that by `load`."""

    def __init__(self, place: str, extra: str) -> None:
        self._module, _, self._name = place.partition(":")
        self._extra = extra

    def load(self) -> Callable[..., Any]:
        """The function, its module imported. Raises PlanningError where a library is missing."""
        try:
            found = import_module(self._module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == self._module.partition(".")[0]:
                raise  # of the package itself: nothing that could be installed
            raise PlanningError(f'the planner needs {error.name}: pip install "{self._extra}"') from error
        return getattr(found, self._name)  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the function takes and returns
        """Call it. Raises PlanningError where a library is missing."""
        return self.load()(*args, **named)


def imported_late(place: str, extra: str) -> Callable[..., Any]:
    """The function at `place`, `package.module:name`, whose module is imported when it is called for the first time.

    So who lists plugins, or runs policies alone, neither has nor waits for what planners need. Calls raise
    PlanningError where a library is missing, and say to install `extra`.
    """
    return LateImport(place, extra)


def load(function: Callable[..., Any]) -> None:
    """Import what a function needs, where that is imported late: before a clock begins that it is limited by.

    Raises PlanningError where a library is missing.
    """
    if isinstance(function, LateImport):
        function.load()
