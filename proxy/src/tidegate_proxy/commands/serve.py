"""`tidegate serve`: the proxy."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    triton: Annotated[
        list[str], typer.Option(help="gRPC address (HOST:PORT) of a Triton; may be given several times.")
    ],
    policy: Annotated[str, typer.Option(help="Scheduling policy by name; `tidegate plugins` lists them.")] = "symphony",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="An option of the policy.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=MS", help="SLO of a model in ms; replaces the one in its config.pbtxt."),
    ] = None,
    profiles: Annotated[Path | None, typer.Option(help="Profile file written by `tidegate profile`.")] = None,
    listen: Annotated[str, typer.Option(help="Address to listen on; port 0 takes a free one.")] = "0.0.0.0:8101",
    record: Annotated[Path | None, typer.Option(help="Write the event log to this file (JSON lines).")] = None,
    observer: Annotated[list[str] | None, typer.Option(help="Observer by name; may be given several times.")] = None,
    wait_s: Annotated[float, typer.Option(help="How long to wait for the Tritons to become ready.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the policy's random generator.")] = 0,
) -> None:
    """Stand in front of Tritons and schedule their inference requests by a policy.

    Clients use this address exactly as they would use Triton's gRPC port. Example:

    tidegate serve --triton localhost:8001 --policy symphony --slo resnet50=25 --profiles profiles.json
    """
    import asyncio
    import logging
    import os
    import signal

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come to us as exceptions; read when it is imported

    import uvloop
    from rich.console import Console
    from rich.logging import RichHandler
    from rich.markup import escape

    from tidegate.api import ProfileFileError
    from tidegate.host import PluginError, Plugins
    from tidegate_proxy.backend import BackendError
    from tidegate_proxy.serve import ServeOptions, serving

    console = Console(soft_wrap=True, highlight=False)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    logging.basicConfig(
        level=logging.INFO, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False)]
    )

    async def run(options: ServeOptions) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with serving(options, Plugins.installed()) as proxy:
            for name, reason in proxy.catalog.passed_through.items():
                console.print(f"[dim]{escape(name)} passes straight through: {reason}[/]")
            scheduled = ", ".join(proxy.catalog.models) or "no model"
            console.print(f"[bold]policy[/]   {options.policy} over {len(proxy.catalog.workers)} workers: {scheduled}")
            console.print(f"[bold]gRPC[/]     {proxy.address}")
            console.file.flush()
            await stop.wait()
        console.print(f"[dim]{escape(str(proxy.engine.tally))}[/]")

    try:
        options = ServeOptions(
            tritons=triton,
            policy=policy,
            policy_options=_pairs(option, "--option"),
            slos_ms={model: _milliseconds(model, text) for model, text in _pairs(slo, "--slo").items()},
            profiles=profiles,
            record=record,
            observers=observer or (),
            address=listen,
            wait_s=wait_s,
            seed=seed,
        )
        uvloop.run(run(options))
    except (BackendError, PluginError, ProfileFileError, OSError) as error:
        errors.print(f"[red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from error


def _pairs(texts: list[str] | None, flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=flag)
        pairs[name] = value
    return pairs


def _milliseconds(model: str, text: str) -> float:
    try:
        slo_ms = float(text)
    except ValueError:
        slo_ms = -1.0
    if not 0 < slo_ms < 1e12:
        raise typer.BadParameter(f"{model}={text}: not a positive number of milliseconds", param_hint="--slo")
    return slo_ms
