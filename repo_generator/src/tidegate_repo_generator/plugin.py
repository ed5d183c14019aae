"""What this distribution adds to `tidegate`."""

from tidegate.api import CommandSpec, hookimpl
from tidegate_repo_generator.commands import generate


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Add `tidegate generate`."""
    return [CommandSpec("generate", generate)]
