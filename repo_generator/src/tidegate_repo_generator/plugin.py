"""Entry points of this distribution in `tidegate`."""

from tidegate.api import CommandSpec, hookimpl
from tidegate_repo_generator.commands import generate
from tidegate_repo_generator.profile_blocks_command import profile_blocks
from tidegate_repo_generator.split_command import split


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Return the commands `tidegate generate`, `tidegate split` and `tidegate profile-blocks`."""
    return [
        CommandSpec("generate", generate),
        CommandSpec("split", split),
        CommandSpec("profile-blocks", profile_blocks),
    ]
