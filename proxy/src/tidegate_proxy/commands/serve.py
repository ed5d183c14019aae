"""`tidegate serve`: the proxy."""

import asyncio
import gc
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate_proxy.commands.triton_flags import TritonFlags, pairs, tritons_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_proxy.actuation.processes import Processes
    from tidegate_proxy.configuration.config import ServeConfig
    from tidegate_proxy.fronts.home import Home
    from tidegate_proxy.proxy import Proxy

log = logging.getLogger(__name__)


def serve(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="Configuration file (YAML); flags win over it. SIGHUP reads it again. Try `tidegate check`.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The same, as an option.")] = None,
    triton: TritonFlags = None,
    policy: Annotated[
        str | None, typer.Option(help="Scheduling policy by name; `tidegate plugins` lists them. [default: symphony]")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="An option of the policy.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=MS", help="SLO of a model in ms; replaces the one in its config.pbtxt."),
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=WORD",
            help="A model's requests: merge, alone or pass; replaces `tidegate_batch` of its config.pbtxt.",
        ),
    ] = None,
    profiles: Annotated[Path | None, typer.Option(help="Profile file written by `tidegate profile`.")] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Address of the gRPC service; port 0 takes a free one. Without this and a configuration: "
            "0.0.0.0:8101, HTTP on 8100 and metrics on 8102."
        ),
    ] = None,
    listen_http: Annotated[str | None, typer.Option(help="Address of the HTTP service.")] = None,
    listen_metrics: Annotated[str | None, typer.Option(help="Address of the metrics page.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the event log to this file (JSON lines).")] = None,
    observer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,OPTION=VALUE]", help="Who watches the engine; may be given several times, with options."
        ),
    ] = None,
    wait_s: Annotated[float | None, typer.Option(help="How long to wait for the Tritons to become ready.")] = None,
    drain_s: Annotated[float | None, typer.Option(help="How long what is under way may take at the end.")] = None,
    transport: Annotated[
        str | None, typer.Option(help="How gRPC is spoken: http2, or grpcio: more CPU per request, older.")
    ] = None,
    fronts: Annotated[
        int | None,
        typer.Option(help="Processes that clients are connected to, beside the one that schedules. [default: 0]"),
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option(
            "--shadow",
            help="Schedule nothing: let every request pass as it is, and tell at /shadow of the metrics page what the "
            "policy would have gained.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the policy's random generator.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text, or json: one object a line.")] = None,
) -> None:
    """Stand in front of Tritons and schedule their inference requests by a policy.

    Clients use these addresses exactly as they would use Triton's. Example:

    tidegate serve --triton localhost:8001 --policy symphony --slo resnet50=25 --profiles profiles.json
    """
    if file is not None and config is not None:
        raise typer.BadParameter(f"{file} is given, too: one configuration is enough", param_hint="--config")
    config = file or config
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come to us as exceptions; read when it is imported

    import uvloop

    from tidegate_proxy.configuration.config_file import read_config
    from tidegate_proxy.observability.logs import configure_logs

    if config is None and not triton:
        _say_error("no Triton is named: give --triton HOST:PORT, or a configuration with --config")
        raise typer.Exit(2)
    flags = {
        "tritons": tritons_of(triton),
        "policy": {"name": policy, "options": pairs(option, "--option") or None},
        "models": _models(pairs(slo, "--slo"), pairs(batch, "--batch")),
        "profiles": profiles,
        "listen": {"grpc": listen, "http": listen_http, "metrics": listen_metrics},
        "record": record,
        "observers": [_observer(text) for text in observer] if observer else None,
        "wait_s": wait_s,
        "drain_s": drain_s,
        "transport": transport,
        "fronts": fronts,
        "shadow": shadow,
        "seed": seed,
        "log": {"format": log_format},
    }

    try:
        settings = read_config(config, flags)
        configure_logs(settings.log.format, settings.log.level.upper())
        allow_all_files()
        if settings.fronts:
            raise typer.Exit(_serve_with_fronts(settings, lambda: read_config(config, flags)))
        uvloop.run(_serve(settings, lambda: read_config(config, flags)))
    except serving_errors() as error:
        _say_error(error)
        raise typer.Exit(1) from error


async def _serve(settings: "ServeConfig", read_again: "Callable[[], ServeConfig]", home: "Home | None" = None) -> None:
    """Serve until a signal says to stop, and tell how the requests ended."""
    from rich.console import Console
    from rich.markup import escape

    proxy = await run_proxy(settings, read_again, _announce, home=home)
    if proxy:
        Console(soft_wrap=True, highlight=False).print(f"[dim]requests: {escape(str(proxy.engine.tally))}[/]")


def _serve_with_fronts(settings: "ServeConfig", read_again: "Callable[[], ServeConfig]") -> int:
    """Serve by several processes; the exit status. Raises OSError for ports that cannot be bound."""
    import uvloop

    from tidegate_proxy.fronts.front import Front
    from tidegate_proxy.fronts.home import Home
    from tidegate_proxy.fronts.supervisor import supervise
    from tidegate_proxy.ports import bind

    listen = settings.listen
    grpc = bind(listen.grpc, reuse_port=listen.reuse_port)
    http = bind(listen.http, reuse_port=listen.reuse_port) if listen.http else None

    def run_home(socket: Path) -> int:
        home = Home(socket, grpc.getsockname()[1], http.getsockname()[1] if http else None, settings.fronts)
        for port in (grpc, http):
            if port:
                port.close()  # the fronts have it
        try:
            uvloop.run(_serve(settings, read_again, home))
        except serving_errors() as error:
            _say_error(error)
            return 1
        return 0

    async def have_clients(socket: Path) -> None:
        await Front(settings, socket, grpc, http).run_as_process(read_again)

    def run_front(socket: Path) -> int:
        uvloop.run(have_clients(socket))
        return 0

    return supervise(run_home, run_front, settings.fronts)


def _say_error(error: Exception | str) -> None:
    from rich.console import Console
    from rich.markup import escape

    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    errors.print(f"[red]error:[/] {escape(str(error))}")


def allow_all_files() -> None:
    """Have as many files open as the administrator allows, not as a shell sets by default: a connection needs one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("only %d files may be open, and no more could be allowed: %s", soft, error)


def serving_errors() -> tuple[type[Exception], ...]:
    """What keeps a proxy from serving, each with the remedy in its message."""
    from tidegate.documents import DocumentError, ProfileFileError
    from tidegate.host import PluginError
    from tidegate_proxy.access.authentication import CredentialFileError
    from tidegate_proxy.access.restrictions import RestrictionError
    from tidegate_proxy.access.tls import TlsError
    from tidegate_proxy.backend import BackendError
    from tidegate_proxy.configuration.config_file import ConfigError
    from tidegate_proxy.observability.tracing import TracingError

    return (
        BackendError,
        ConfigError,
        CredentialFileError,
        DocumentError,
        PluginError,
        ProfileFileError,
        RestrictionError,
        TlsError,
        TracingError,
        OSError,
    )


async def run_proxy(
    settings: "ServeConfig",
    read_again: "Callable[[], ServeConfig]",
    announce: "Callable[[Proxy], None]",
    processes: "Processes | None" = None,
    home: "Home | None" = None,
) -> "Proxy | None":
    """Serve until a signal says to stop; SIGHUP has the configuration read again. What served, for its figures.

    `processes`: starts and stops workers where a controller wants that; None: nobody does. `home`: where the requests
    of fronts come in, which have the clients; None: this process has them.
    None where the signal came before anything was served, such as while Tritons were waited for.
    """
    from tidegate.host import Plugins
    from tidegate_proxy.serve import serving
    from tidegate_proxy.watchdog import Watchdog

    loop = asyncio.get_running_loop()
    stop, again = asyncio.Event(), asyncio.Event()
    serves = False

    async def serve_until_stopped() -> "Proxy":
        nonlocal serves
        async with serving(settings, Plugins.installed(), processes, home) as proxy:
            serves = True
            announce(proxy)
            watchdog = Watchdog(lambda: proxy.in_force.settings.silence_s)
            reloading = loop.create_task(_reload(proxy, again, read_again))
            await stop.wait()
            reloading.cancel()
            watchdog.close()
        return proxy

    work = loop.create_task(serve_until_stopped())

    def end() -> None:
        stop.set()
        if not serves:
            work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, again.set)
    try:
        return await work
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        log.info("asked to stop before anything was served")
        return None


def _announce(proxy: "Proxy") -> None:
    from rich.console import Console

    # What is here stays. Looked through for garbage again and again, it would hold everybody for 40 ms each time.
    gc.collect()
    gc.freeze()
    console = Console(soft_wrap=True, highlight=False)
    scheduled = ", ".join(proxy.catalog.models) or "no model"
    console.print(
        f"[bold]policy[/]   {proxy.config.policy.name} over {len(proxy.catalog.workers)} workers: {scheduled}"
    )
    if proxy.config.shadow:
        console.print("[bold]shadow[/]   nothing is scheduled: every request passes as it is")
    if proxy.http_address:
        console.print(f"[bold]HTTP[/]     {proxy.http_address}")
    if proxy.metrics_address:
        console.print(f"[bold]metrics[/]  {proxy.metrics_address}/metrics")
    console.print(f"[bold]gRPC[/]     {proxy.address}")
    console.file.flush()


async def _reload(proxy: "Proxy", wanted: asyncio.Event, read_again: "Callable[[], ServeConfig]") -> None:
    from tidegate_proxy.faults import faults

    while True:
        await wanted.wait()
        wanted.clear()
        try:
            await proxy.reconfigure(read_again())
        except Exception as error:  # the next one may be better
            log.error("the configuration was not taken up, and nothing has changed: %s", error)
            if not isinstance(error, (*serving_errors(), ValueError)):
                faults.report("taking up a configuration", error)


def _observer(text: str) -> dict[str, Any]:
    name, *options = text.split(",")
    return {"name": name, "options": pairs(options, "--observer")}


def _models(slos: dict[str, str], words: dict[str, str]) -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = {name: {"slo_ms": _milliseconds(name, text)} for name, text in slos.items()}
    for name, word in words.items():
        models.setdefault(name, {})["batch"] = word
    return models


def _milliseconds(model: str, text: str) -> float:
    try:
        slo_ms = float(text)
    except ValueError:
        slo_ms = -1.0
    if not 0 < slo_ms < 1e12:
        raise typer.BadParameter(f"{model}={text}: not a positive number of milliseconds", param_hint="--slo")
    return slo_ms
