"""Registration of the load test's subcommands."""

from tidegate.api import CommandSpec, hookimpl
from tidegate_loadtest.commands.compare import compare
from tidegate_loadtest.commands.fit_interference import fit_interference
from tidegate_loadtest.commands.loadtest import loadtest
from tidegate_loadtest.commands.profile import profile
from tidegate_loadtest.commands.profile_shares import profile_shares


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Return the commands `compare`, `fit-interference`, `loadtest`, `profile` and `profile-shares`."""
    return [
        CommandSpec("compare", compare),
        CommandSpec("fit-interference", fit_interference),
        CommandSpec("loadtest", loadtest),
        CommandSpec("profile", profile),
        CommandSpec("profile-shares", profile_shares),
    ]
