"""Registration of the proxy's subcommands."""

from tidegate.api import CommandSpec, hookimpl
from tidegate_proxy.commands.accounts import accounts
from tidegate_proxy.commands.check import check
from tidegate_proxy.commands.doctor import doctor
from tidegate_proxy.commands.down import down
from tidegate_proxy.commands.init import init
from tidegate_proxy.commands.mig import mig
from tidegate_proxy.commands.serve import serve
from tidegate_proxy.commands.triton import triton
from tidegate_proxy.commands.up import up
from tidegate_proxy.commands.view import view


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Offer `serve`, `check`, `doctor`, `init`, `view`, `triton`, `up`, `down`, `mig` and `accounts`."""
    return [
        CommandSpec("serve", serve),
        CommandSpec("check", check),
        CommandSpec("doctor", doctor),
        CommandSpec("init", init),
        CommandSpec("view", view),
        CommandSpec("triton", triton),
        CommandSpec("up", up),
        CommandSpec("down", down),
        CommandSpec("mig", mig),
        CommandSpec("accounts", accounts),
    ]
