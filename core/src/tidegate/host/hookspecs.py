"""The hooks that a distribution may implement."""

from collections.abc import Iterable

import pluggy

from tidegate.api import CommandSpec, PlannerSpec, PolicySpec
from tidegate.api.specs import PROJECT_NAME
from tidegate.control import ControllerSpec
from tidegate.observation import ObserverSpec

hookspec = pluggy.HookspecMarker(PROJECT_NAME)


class Hooks:
    """Hook specifications that a distribution may implement."""

    @hookspec
    def tidegate_policies(self) -> Iterable[PolicySpec]:
        """Policies this distribution offers."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_planners(self) -> Iterable[PlannerSpec]:
        """Planners this distribution offers (`tidegate plan NAME`)."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_controllers(self) -> Iterable[ControllerSpec]:
        """Controllers this distribution offers (`controller` in a scenario)."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_commands(self) -> Iterable[CommandSpec]:
        """Subcommands this distribution adds to `tidegate`."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_observers(self) -> Iterable[ObserverSpec]:
        """Observers this distribution offers (`tidegate serve --observer NAME`)."""
        raise AssertionError("a specification is never called")
