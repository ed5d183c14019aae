"""What needs libraries that policies do without, imported when it runs: most planners."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tidegate.api.planner import PlanningError


def imported_late(place: str, extra: str) -> Callable[..., Any]:
    """The function at `place`, `package.module:name`, whose module is imported when it is called for the first time.

    So who lists plugins, or runs policies alone, neither has nor waits for what planners need. Calls raise
    PlanningError where a library is missing, and say to install `extra`.
    """
    module, _, name = place.partition(":")

    def run(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the function takes and returns
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == module.partition(".")[0]:
                raise  # of the package itself: nothing that could be installed
            raise PlanningError(f'the planner needs {error.name}: pip install "{extra}"') from error
        return getattr(found, name)(*args, **named)

    return run
