"""Command `tidegate view`: a recorded run in the dashboard."""

from pathlib import Path
from typing import Annotated

import typer


def view(
    log: Annotated[Path, typer.Argument(help="Event log that `tidegate serve --event-log` wrote.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port of 127.0.0.1 to listen on (0 picks a free port).")
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser; else only print the address.")] = True,
) -> None:
    """Show a recorded run in the browser dashboard.

    Serves the dashboard of a running Tidegate for any instant of an event log.

    It is reachable from this machine only, at an address that contains a token. It needs no network, opens at once
    for a file of any size, and runs until Ctrl-C. Example:

    tidegate view run.jsonl
    """
    import asyncio

    from rich.console import Console

    from tidegate.commands.common import describe_error
    from tidegate_proxy.app.dashboard.serving import show

    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        asyncio.run(show(log, port, notify=typer.echo, browser=browser))
    except KeyboardInterrupt:
        return
    except OSError as error:  # of the file, or of the port
        errors.print(f"error: {describe_error(error)}", style="red")
        raise typer.Exit(1) from error
    except ValueError as error:
        errors.print(f"error: {log}: {error}", style="red")
        raise typer.Exit(1) from error
