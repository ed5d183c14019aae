"""The `tidegate` command. Its subcommands come from plugins; only `plugins` is at home here."""

import os
import re
import sys
from importlib import metadata
from typing import Annotated, Any, Final

import typer

from tidegate.commands.plugins import plugins_command
from tidegate.host import Plugins
from tidegate.schemas import plain_message


def build_app(plugins: Plugins) -> typer.Typer:
    """The command line over everything that is installed."""
    app = typer.Typer(
        name="tidegate",
        help="A scheduling proxy for NVIDIA Triton that decides which requests run together, when and where.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Frames, which wrap what they hold, are for those who look at a terminal.
        rich_markup_mode="rich" if sys.stdout.isatty() and sys.stderr.isatty() else None,
    )

    @app.callback()
    def _root(
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit.")
        ] = False,
    ) -> None:
        # There is a callback, so subcommands stay subcommands even when only one is installed.
        del version

    app.command("plugins")(plugins_command(plugins))
    for name in sorted(plugins.commands):
        app.command(name)(plugins.commands[name].run)
    return app


def _print_version(wanted: bool) -> None:
    """That of this distribution: all members share one."""
    if wanted:
        typer.echo(f"tidegate {metadata.version('tidegate')}")
        raise typer.Exit


COMMANDS_OF: Final = {
    "proxy": ("check", "doctor", "down", "init", "mig", "serve", "triton", "up", "view"),
    "loadtest": ("compare", "fit-interference", "loadtest", "profile", "profile-shares"),
    "generate": ("generate", "profile-blocks", "split"),
}
"""Commands of each extra of this distribution, to name the extra where it is not installed."""
_UsageError: Any = typer.BadParameter.__mro__[1]
"""Its base: typer has a copy of click's, and does not show it."""


def main() -> None:
    """Run the command line. What is wrong with it is said in a line, with exit status 2.

    What Ctrl-C ends while plugins are imported, too, ends with 130 and no traceback.
    """
    try:
        sys.exit(build_app(Plugins.installed())(standalone_mode=False))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # Who reads, `head` say, has had enough: what is still in the buffer is for nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            typer.echo(f"error: {_in_a_line(error)}", err=True)
        sys.exit(2)


def _in_a_line(error: Any) -> str:  # noqa: ANN401 - a copy of click's error
    said, context = plain_message(error.format_message()), error.ctx
    if asked := re.match(r"No such command '(.+?)'", said):
        for extra, commands in COMMANDS_OF.items():
            if asked[1] in commands:
                return f'the command {asked[1]!r} is not installed: pip install "tidegate[{extra}]"'
    end = "" if said.endswith(("?", ".")) else "."
    return f"{said}{end} See `{context.command_path if context else 'tidegate'} --help`"
