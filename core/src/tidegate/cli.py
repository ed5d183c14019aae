"""The `tidegate` command: collects the subcommands of all plugins and adds `plugins`, which lists them."""

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tidegate.commands.plugins import plugins_command
from tidegate.host import PluginError, Plugins
from tidegate.schemas import plain_message


def build_app(plugins: Plugins) -> typer.Typer:
    """Return the command line with the subcommands of all installed plugins."""
    app = typer.Typer(
        name="tidegate",
        cls=_GroupedCommands,
        context_settings={"help_option_names": ["-h", "--help"]},
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

    commands = {"plugins": plugins_command(plugins), **{name: spec.run for name, spec in plugins.commands.items()}}
    for group, names in _groups(commands):
        for name in names:
            app.command(name, rich_help_panel=group, help=_help_of(commands[name]))(commands[name])
    return app


def _help_of(command: Callable[..., None]) -> str:
    """Return the docstring, with the examples on lines of their own that can be pasted: a long one has backslashes."""
    return "\n\n".join(
        f"\b\n{_pasteable(' '.join(paragraph.split()))}" if _EXAMPLE.match(paragraph) else paragraph
        for paragraph in re.split(r"\n\s*\n", inspect.getdoc(command) or "")
    )


def _pasteable(example: str) -> str:
    return " \\\n    ".join(textwrap.wrap(example, _EXAMPLE_COLUMNS, break_long_words=False, break_on_hyphens=False))


_EXAMPLE: Final = re.compile(r"\s*(sudo )?(tidegate|curl) ")
_EXAMPLE_COLUMNS: Final = 68
"""Width of a line of an example: with the indentation and a backslash it fits 80 columns."""


class _GroupedCommands(TyperGroup):
    """The root command, whose plain help lists the subcommands by group, their first lines uncut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's copy of click
        """Write a section for each group."""
        del ctx
        for group, names in _groups(self.commands):
            with formatter.section(group):
                formatter.write_dl([(name, (self.commands[name].help or "").split("\n")[0]) for name in names])


def _groups(commands: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each group that has commands, with their names in order; commands of other plugins are in the last."""
    rest = set(commands)
    for group, names in COMMAND_GROUPS.items():
        if found := [name for name in names if name in rest]:
            rest.difference_update(found)
            yield group, found
    if rest:
        yield OTHER_GROUP, sorted(rest)


def _print_version(wanted: bool) -> None:
    """That of this distribution: all members share one."""
    if wanted:
        typer.echo(f"tidegate {metadata.version('tidegate')}")
        raise typer.Exit


COMMAND_GROUPS: Final = {
    "Serve": ("serve", "up", "down", "triton", "mig"),
    "Prepare": (
        *("init", "check", "generate", "split", "profile", "profile-blocks", "profile-shares"),
        *("fit-interference", "train-inss", "plugins"),
    ),
    "Plan": ("recommend", "plan", "batch-histogram"),
    "Observe": ("doctor", "view", "explain", "replay", "accounts"),
    "Simulate and test": ("simulate", "sweep", "goodput", "loadtest", "compare", "check-policy", "new-policy"),
}
"""Commands by what they are for, in the order of `tidegate --help`."""
OTHER_GROUP: Final = "Other plugins"
COMMANDS_OF: Final = {
    "proxy": ("accounts", "check", "doctor", "down", "init", "mig", "serve", "triton", "up", "view"),
    "loadtest": ("compare", "fit-interference", "loadtest", "profile", "profile-shares"),
    "generate": ("generate", "profile-blocks", "split"),
}
"""Commands of each extra of this distribution, to name the extra where it is not installed."""
_OF_TRITON: Final = "; TLS of a Triton is set in a configuration, as tritons[].tls"
_OF_CLIENTS: Final = "; TLS for clients is set in a configuration, as tls: {cert: FILE, key: FILE}"
_IN_SCENARIO: Final = (
    "; list the policy in the scenario with its options: policies: [{name: NAME, options: {OPTION: VALUE}}]"
)
_INSTEAD: Final = {
    ("serve", "--port"): "; the address is --listen HOST:PORT",
    **{("serve", flag): _OF_TRITON for flag in ("--tls", "--tls-ca")},
    **{("serve", flag): _OF_CLIENTS + _OF_TRITON for flag in ("--tls-cert", "--tls-key")},
    **{(name, flag): _IN_SCENARIO for name in ("simulate", "sweep", "goodput") for flag in ("--option", "-O")},
    ("explain", "-1"): "; requests are numbered from 0",
}
"""Remedies for options that people expect and a command does not have, by command and option."""
_UsageError: Any = typer.BadParameter.__mro__[1]
"""Its base: typer has a copy of click's, and does not show it."""


def main() -> None:
    """Run the command line. A usage error is printed in one line, with exit status 2; an unusable plugin with status 1.

    What Ctrl-C ends while plugins are imported, too, ends with 130 and no traceback.
    """
    try:
        sys.exit(build_app(Plugins.installed())(standalone_mode=False))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except PluginError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe: discard the rest of the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            typer.echo(f"error: {_in_a_line(error)}", err=True)
        sys.exit(2)


def _in_a_line(error: Any) -> str:  # noqa: ANN401 - a copy of click's error
    message, context = plain_message(error.format_message()), error.ctx
    if asked := re.match(r"No such command '(.+?)'", message):
        for extra, commands in COMMANDS_OF.items():
            if asked[1] in commands:
                return f'the command {asked[1]!r} is not installed: pip install "tidegate[{extra}]"'
    if context and (asked := re.match(r"No such option: (-+[\w-]+)", message)):
        message += _INSTEAD.get((context.info_name or "", asked[1]), "")
    end = "" if message.endswith(("?", ".")) else "."
    return f"{message}{end} See `{context.command_path if context else 'tidegate'} --help`"
