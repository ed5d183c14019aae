"""Command `tidegate up`: starts a deployment on this machine."""

import json
import os
import sys
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from tidegate_proxy.app.proxy import Proxy
    from tidegate_proxy.deployed.background import Event, Tell
    from tidegate_proxy.deployed.folder import DeploymentPlan
    from tidegate_proxy.deployed.state import RunningState
    from tidegate_proxy.deployed.tritons import RunningTritons
    from tidegate_proxy.on_ray.plan import RayPlan
    from tidegate_proxy.tritons.embedded import EmbeddedTriton


def up(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `tidegate generate LAYOUT` wrote.")],
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground; Ctrl-C or SIGTERM stops everything.")
    ] = False,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Listen on free ports instead of those in DIR/tidegate.yaml.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the processes as JSON; with --foreground one object a line for each event."),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Start the deployment on a Ray cluster: HOST:PORT of its head, ray://HOST:PORT from other "
            "machines, or auto for a cluster on this machine.",
        ),
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            min=1,
            help="Scheduler shards at most, with --ray; models that share a worker or a device stay together.",
        ),
    ] = 1,
    frontends: Annotated[
        int,
        typer.Option(
            min=1,
            help="Nodes with frontends, with --ray; each has as many processes as `frontends` in "
            "DIR/tidegate.yaml says.",
        ),
    ] = 1,
    takes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PRODUCT,]RESOURCE=AMOUNT",
            help="Ray resources that a device of the layout (or of this product) takes: --takes GPU=1 --takes "
            "T4,GPU=1,accelerator_type:T4=0.001. Repeatable. [default: CPU=1]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start a generated deployment: Tritons and the proxy.

    Starts an embedded Triton for each worker on this machine, and the proxy in front of them.

    Returns once clients are served, and prints the addresses for them; `tidegate down DIR` stops everything. The
    running processes are listed in DIR/run/state.json, with the logs beside it. If one worker fails to start,
    nothing is left running, and the error names the worker and the cause. Example:

    tidegate generate layout.json --blocks recognize=blocks -o deployment

    tidegate up deployment

    With --ray the Tritons, shards and frontends are placed on the nodes of a Ray cluster, and moved when a node is
    lost; the nodes need the same version of Tidegate, but not DIR. Example:

    tidegate up deployment --ray auto --shards 2 --takes GPU=1
    """
    import signal

    from rich.console import Console
    from rich.markup import escape

    from tidegate.schemas import DocumentError
    from tidegate_proxy.configuration.config_file import ConfigError
    from tidegate_proxy.deployed.background import start_in_background
    from tidegate_proxy.deployed.folder import DeploymentError, read_plan
    from tidegate_proxy.on_ray.plan import plan_for_ray

    console, errors = (Console(stderr=stderr, soft_wrap=True, highlight=False) for stderr in (False, True))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends all as Ctrl-C does
    try:
        plan = read_plan(folder, free_ports=free_ports)
        for name in plan.left_out:
            errors.print(f"[yellow]notice:[/] worker {escape(repr(name))} is not started: tidegate.yaml leaves it out")
        stay: Callable[[Tell], None] = partial(_stay, plan)
        options = ["--free-ports"] if free_ports else []
        if ray:
            stay = partial(_stay_on_ray, plan_for_ray(plan, shards, frontends, takes or ()), ray)
            options += ["--ray", ray, "--shards", str(shards), "--frontends", str(frontends)]
            options += [word for each in takes or () for word in ("--takes", each)]
        elif shards > 1 or frontends > 1 or takes:
            raise DeploymentError(
                "--shards, --frontends and --takes say what --ray ADDRESS is to place: give that, too"
            )
        if foreground and as_json:
            with redirect_stdout(sys.stderr):  # for output of libraries, such as Ray's
                stay(_print_line)
            return
        with _progress(errors) as show:
            if foreground:
                stay(lambda event: _announce(console, folder, event, show))
                return
            state = start_in_background(folder, options=options, tell=show)
    except (ConfigError, DeploymentError, DocumentError, OSError) as error:
        if foreground and as_json:
            _print_line({"event": "failed", "error": str(error)})
        else:
            errors.print(f"[red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
    if as_json:
        typer.echo(state.model_dump_json(indent=2))
    else:
        _say(console, folder, state, f"tidegate down {folder} stops it")


def _stay(plan: "DeploymentPlan", tell: "Tell") -> None:
    """Start everything, serve until a signal says to stop, and stop everything. Raises DeploymentError, ConfigError."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come to us as exceptions; read when it is imported

    import uvloop

    from tidegate.host import Plugins
    from tidegate.schemas import PROXY_FILE, FieldError
    from tidegate_proxy.app.config_check import plugin_problems
    from tidegate_proxy.commands.running import run_proxy, serving_errors
    from tidegate_proxy.configuration.config_file import ConfigError
    from tidegate_proxy.deployed.folder import DeploymentError, port_remedy
    from tidegate_proxy.deployed.state import held, remove_state, write_state
    from tidegate_proxy.deployed.tritons import running_tritons
    from tidegate_proxy.observability.logs import configure_logs

    def ready(name: str, triton: "EmbeddedTriton") -> None:
        tell({"event": "ready", "worker": name, "grpc": triton.grpc_address})

    served: Proxy | None = None

    def changed(tritons: "RunningTritons") -> None:
        if served:
            write_state(plan.folder, _state_of(served, tritons))

    if problems := plugin_problems(plan.config, Plugins.installed()):  # which should not have to wait for Tritons
        raise ConfigError(str(plan.folder / PROXY_FILE), tuple(problems))
    if plan.config.frontends:
        problem = FieldError("frontends", "`tidegate up` has its clients in one process: leave it out")
        raise ConfigError(str(plan.folder / PROXY_FILE), (problem,))
    with held(plan.folder):
        try:
            tell({"event": "starting", "workers": [worker.name for worker in plan.workers]})
            with running_tritons(plan.folder, plan.workers, ready, changed) as tritons:
                addresses = tritons.addresses

                def serving(proxy: "Proxy") -> None:
                    nonlocal served
                    state = _state_of(proxy, tritons)
                    write_state(plan.folder, state)
                    served = proxy
                    tell({"event": "serving", "state": state.model_dump(mode="json")})

                try:
                    config = plan.reread(addresses)
                    configure_logs(config.log.format, config.log.level.upper())
                    uvloop.run(run_proxy(config, lambda: plan.reread(addresses), serving, tritons))
                except serving_errors() as error:
                    raise DeploymentError(f"the proxy did not start: {error}{port_remedy(str(error))}") from error
        finally:
            remove_state(plan.folder)


def _stay_on_ray(plan: "RayPlan", address: str, tell: "Tell") -> None:
    """The same on the nodes of a cluster. Raises DeploymentError, ConfigError."""
    from tidegate.host import Plugins
    from tidegate.schemas import PROXY_FILE
    from tidegate_proxy.app.config_check import plugin_problems
    from tidegate_proxy.configuration.config_file import ConfigError
    from tidegate_proxy.observability.logs import configure_logs
    from tidegate_proxy.on_ray.session import serve_on_ray

    config = plan.deployment.config
    if problems := plugin_problems(config, Plugins.installed()):
        raise ConfigError(str(plan.deployment.folder / PROXY_FILE), tuple(problems))
    configure_logs(config.log.format, config.log.level.upper())
    serve_on_ray(plan, address, tell)


def _state_of(proxy: "Proxy", tritons: "RunningTritons") -> "RunningState":
    from tidegate_proxy.deployed.state import RunningState

    def for_clients(address: str) -> str:
        return address.replace("0.0.0.0", "localhost", 1)

    return RunningState(
        pid=os.getpid(),
        grpc=for_clients(proxy.address),
        http=for_clients(proxy.http_address),
        metrics=for_clients(proxy.metrics_address),
        workers=tritons.workers,
    )


@contextmanager
def _progress(console: "Console") -> "Iterator[Tell]":
    """A bar over the workers, gone once clients are served."""
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)

        def show(event: "Event") -> None:
            match event["event"]:
                case "starting":
                    workers = len(event["workers"])
                    progress.update(task, total=workers + 1, description=f"starting {workers} workers")
                case "ready":
                    progress.update(task, advance=1, description=f"{event['worker']} is ready")
                case "serving":
                    progress.stop()

        yield show


def _announce(console: "Console", folder: Path, event: "Event", show: "Tell") -> None:
    from tidegate_proxy.deployed.state import RunningState

    show(event)
    if event["event"] == "serving":
        _say(console, folder, RunningState.model_validate(event["state"]), "Ctrl-C stops it")
        console.file.flush()


def _say(console: "Console", folder: Path, state: "RunningState", remedy: str) -> None:
    from rich.markup import escape

    for worker in state.workers:
        where = f" of node {worker.node}" if worker.node else ""
        console.print(f"[bold]worker[/]    {escape(worker.name)} at {worker.grpc}, log {escape(worker.log)}{where}")
    for shard in state.shards:
        console.print(f"[bold]{shard.name:9}[/] at {shard.addresses['shard']}")
    for frontend in state.frontends[1:]:
        console.print(f"[bold]{frontend.name}[/]  gRPC {frontend.addresses['grpc']}")
    for what, address in (("HTTP", state.http), ("metrics", state.metrics and f"{state.metrics}/metrics")):
        if address:
            console.print(f"[bold]{what:9}[/] {address}")
    console.print(f"[bold]gRPC[/]      {state.grpc}")
    console.print(f"[dim]{escape(str(folder))} is up; {escape(remedy)}[/]")


def _print_line(event: "Event") -> None:
    assert sys.__stdout__ is not None, "it stays open"
    try:
        sys.__stdout__.write(json.dumps(event) + "\n")
        sys.__stdout__.flush()
    except BrokenPipeError:
        if event["event"] not in ("lost", "back"):
            raise  # who started us is gone before clients are served: so are we
        # Who started us in the background has read until then, and no further.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
