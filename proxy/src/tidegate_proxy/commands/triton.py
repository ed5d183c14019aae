"""Command `tidegate triton`: runs the embedded Triton over model repositories until interrupted."""

from pathlib import Path
from typing import Annotated

import typer


def triton(
    repositories: Annotated[
        list[str],
        typer.Argument(
            metavar="REPOSITORY... [-- FLAG...]",
            help="Model repositories; after --, further flags of tritonserver itself.",
        ),
    ],
    grpc_port: Annotated[int, typer.Option(help="Port of the gRPC service (0 picks a free port).")] = 8001,
    http_port: Annotated[int, typer.Option(help="Port of the HTTP service (0 picks a free port).")] = 8000,
    metrics_port: Annotated[int, typer.Option(help="Port of the Prometheus metrics (0 picks a free port).")] = 8002,
    host: Annotated[str, typer.Option(help="Numeric address to listen on.")] = "127.0.0.1",
    log_file: Annotated[Path | None, typer.Option(help="Write tritonserver's log to this file.")] = None,
    complete_config: Annotated[
        bool, typer.Option(help="Let Triton complete the models' config.pbtxt (over a second per model).")
    ] = False,
) -> None:
    """Run the tritonserver of the nvidia-pytriton wheel.

    Prints the addresses and the models once they are ready, and runs until SIGINT or SIGTERM. A server that exits by
    itself is restarted on the same ports. Exits with status 1 and the reason if the first start fails.
    """
    import signal

    from rich.console import Console

    from tidegate.terminal import describe_error
    from tidegate_proxy.observability.logs import configure_logs
    from tidegate_proxy.tritons.embedded import EmbeddedTriton, TritonStartError
    from tidegate_proxy.tritons.embedded.restarter import TritonRestarter

    console = Console(soft_wrap=True)
    errors = Console(stderr=True, soft_wrap=True)
    split = next((index for index, word in enumerate(repositories) if word.startswith("-")), len(repositories))
    # SIGTERM ends it as Ctrl-C does, so that the server is stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server = EmbeddedTriton(
            repositories[:split],
            log=log_file,
            options=repositories[split:],
            grpc_port=grpc_port,
            http_port=http_port,
            metrics_port=metrics_port,
            host=host,
            complete_config=complete_config,
        )
        with console.status("starting tritonserver and loading the models"):
            server.start()
    except (TritonStartError, ValueError, OSError) as error:
        errors.print(f"[red]error:[/] {_escaped(describe_error(error))}", highlight=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        return
    try:
        console.print(f"[bold]gRPC[/]      {server.grpc_address}", highlight=False)
        console.print(f"[bold]HTTP[/]      {server.http_address}", highlight=False)
        console.print(f"[bold]metrics[/]   {server.metrics_address}/metrics", highlight=False)
        console.print(f"[bold]models[/]    {_escaped(', '.join(_ready_models(server.http_address)))}", highlight=False)
        console.print("[dim]Ctrl-C stops it[/]")
        configure_logs("text", "INFO")
        TritonRestarter("tritonserver", server, server.restart, lambda: None).watch()
    except KeyboardInterrupt:
        return
    finally:
        server.stop()


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _ready_models(http_address: str) -> list[str]:
    """Ask the server for its models, as `name:version`."""
    import http.client
    import json

    connection = http.client.HTTPConnection(http_address, timeout=10)
    try:
        connection.request("POST", "/v2/repository/index", body=json.dumps({"ready": True}))
        index = json.load(connection.getresponse())
    finally:
        connection.close()
    return [f"{model['name']}:{model['version']}" for model in index]
