"""Hook specifications: the functions by which a distribution adds plugins."""

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
        """Return the policies of this distribution."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_planners(self) -> Iterable[PlannerSpec]:
        """Return the planners of this distribution (`tidegate plan NAME`)."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_controllers(self) -> Iterable[ControllerSpec]:
        """Return the controllers of this distribution (`controller` in a scenario)."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_commands(self) -> Iterable[CommandSpec]:
        """Return the subcommands that this distribution adds to `tidegate`."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_observers(self) -> Iterable[ObserverSpec]:
        """Return the observers of this distribution (`tidegate serve --observer NAME`)."""
        raise AssertionError("a specification is never called")
