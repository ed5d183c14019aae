"""Functions whose modules are imported at the first call, because planners need libraries that policies do not."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tidegate.api.planner import PlanningError


class LateImport:
    """A function whose module is imported at its first call, or earlier by `load`."""

    def __init__(self, place: str, extra: str) -> None:
        self._module, _, self._name = place.partition(":")
        self._extra = extra

    def load(self) -> Callable[..., Any]:
        """Import the module and return the function. Raises PlanningError if a library is missing."""
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
    """Return a function that imports `place` (`package.module:name`) at its first call.

    Listing plugins or running policies then needs no planner libraries. Calls raise PlanningError if a library is
    missing; the message says to install `extra`.
    """
    return LateImport(place, extra)


def load(function: Callable[..., Any]) -> None:
    """Import the libraries of a late-imported function now, so that a time limit does not include the import.

    Raises PlanningError if a library is missing.
    """
    if isinstance(function, LateImport):
        function.load()
