"""`tidegate top`: a running Tidegate, watched from a terminal."""

from pathlib import Path
from typing import Annotated

import typer


def top(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Of its metrics page (listen.metrics).")
    ] = "localhost:8102",
    every: Annotated[float, typer.Option(min=0.1, metavar="S", help="How often it is looked at.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look for one interval, print that, and end; so where there is no terminal.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one interval, as one object.")] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A bearer token, where the page wants one.")
    ] = None,
) -> None:
    """Show what a running Tidegate does: each model's rate, misses, latency and queue, each worker's busy share.

    It reads the metrics page, again and again until Ctrl-C, and asks nothing else of it. Figures are those of the
    latest interval. Examples:

    tidegate top gateway:8102

    tidegate top --once --every 10
    """
    import json
    import sys
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.markup import escape

    from tidegate.terminal import console_for_tables
    from tidegate_proxy.app.top.figures import figures_between
    from tidegate_proxy.app.top.reading import Unreadable, read
    from tidegate_proxy.app.top.tables import tables_of

    console = console_for_tables()
    try:
        headers = {"authorization": f"Bearer {token_file.read_text().strip()}"} if token_file else {}
        before = read(address, headers)
        if once or as_json or not sys.stdout.isatty():
            time.sleep(every)
            figures = figures_between(before, read(address, headers))
            if as_json:
                typer.echo(json.dumps(figures.document(), indent=2))
            else:
                console.print(tables_of(figures, address))
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            live.update(tables_of(figures_between(before, before), address), refresh=True)
            while True:
                time.sleep(every)
                after = read(address, headers)
                live.update(tables_of(figures_between(before, after), address), refresh=True)
                before = after
    except KeyboardInterrupt:
        return
    except (Unreadable, OSError) as error:
        errors = Console(stderr=True, soft_wrap=True, highlight=False)
        errors.print(f"[red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from error
