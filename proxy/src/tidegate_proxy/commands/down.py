"""Command `tidegate down`: stops what `tidegate up` started."""

import json
from pathlib import Path
from typing import Annotated

import typer


def down(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `tidegate up` was given.")],
    timeout_s: Annotated[
        float,
        typer.Option(
            min=0.1, help="Seconds that requests in flight and the Tritons have to end; then they are killed."
        ),
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was stopped as JSON.")] = False,
) -> None:
    """Stop a deployment that `tidegate up` started.

    Stops the proxy once its requests in flight are answered, then its Tritons. If no deployment runs, or it has
    ended by itself, the command says so and succeeds. Example:

    tidegate down deployment
    """
    from rich.console import Console
    from rich.markup import escape

    from tidegate.schemas import DocumentError, read_deployment
    from tidegate_proxy.deployed.background import stop_in_background
    from tidegate_proxy.deployed.folder import DeploymentError

    console, errors = (Console(stderr=stderr, soft_wrap=True, highlight=False) for stderr in (False, True))
    try:
        read_deployment(folder)
        with errors.status(f"stopping {escape(str(folder))}"):
            stopped = stop_in_background(folder, timeout_s=timeout_s)
    except (DeploymentError, DocumentError, OSError) as error:
        errors.print(f"[red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from error
    if as_json:
        ended = None if stopped is None else stopped.pid
        workers = [] if stopped is None else [name for name in stopped.workers if name not in stopped.ended_before]
        before = [] if stopped is None else list(stopped.ended_before)
        typer.echo(json.dumps({"proxy": ended, "workers": workers, "ended_before": before}, indent=2))
        return
    if stopped is None:
        console.print(f"nothing of {escape(str(folder))} was up")
        return
    workers = [name for name in stopped.workers if name not in stopped.ended_before]
    how = "killed" if stopped.killed else "stopped"
    console.print(f"{how} the proxy (process {stopped.pid}) and {len(workers)} workers: {escape(', '.join(workers))}")
    for name in stopped.ended_before:
        console.print(f"worker {escape(repr(name))} had ended before")
