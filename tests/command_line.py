"""The `tidegate` command in this process, with everything that is installed."""

from typer.testing import CliRunner, Result

from tidegate.cli import build_app
from tidegate.host import Plugins

APP = build_app(Plugins.installed())


def invoke(*arguments: object) -> Result:
    """Return how a command ends, and what it prints."""
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])
