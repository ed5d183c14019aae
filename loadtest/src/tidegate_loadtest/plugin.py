"""Registers the load test's subcommands."""

from tidegate.api import CommandSpec, hookimpl
from tidegate_loadtest.commands.compare import compare
from tidegate_loadtest.commands.loadtest import loadtest
from tidegate_loadtest.commands.profile import profile


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Offer `compare`, `loadtest` and `profile`."""
    return [CommandSpec("compare", compare), CommandSpec("loadtest", loadtest), CommandSpec("profile", profile)]
