"""Registers the proxy's subcommands."""

from tidegate.api import CommandSpec, hookimpl
from tidegate_proxy.commands.check import check
from tidegate_proxy.commands.serve import serve
from tidegate_proxy.commands.triton import triton


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Offer `serve`, `check` and `triton`."""
    return [CommandSpec("serve", serve), CommandSpec("check", check), CommandSpec("triton", triton)]
