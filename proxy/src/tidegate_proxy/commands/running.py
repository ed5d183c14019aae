"""Helpers of commands that run a proxy until a signal arrives."""

import asyncio
import gc
import logging
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from tidegate_proxy.app.proxy import Proxy
    from tidegate_proxy.configuration.config import ServeConfig
    from tidegate_proxy.deployed.tritons import RunningTritons
    from tidegate_proxy.frontends.shard import Shard

log = logging.getLogger(__name__)


def tell_tally(proxy: "Proxy") -> None:
    """Print the number of requests by outcome."""
    from rich.console import Console
    from rich.markup import escape

    from tidegate_proxy.service.passthrough import bypassed_in_words

    bypassed = bypassed_in_words(proxy.driver.observability.metrics.counts.bypassed)
    summary = f"{proxy.engine.tally}; bypassed the scheduler: {bypassed or '0'}"
    for model, fraction in sorted(proxy.driver.observability.metrics.gaps_on_time().items()):
        summary += f"; {model}: {100 * fraction:.1f} % of streams within slo_gap_ms"
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[dim]requests: {escape(summary)}[/]")
    for sentence in proxy.rollout.versions.sentences():
        console.print(f"[dim]version rollout: {escape(sentence)}[/]")


def say_error(error: Exception | str) -> None:
    """Print why serving is impossible."""
    from rich.console import Console
    from rich.markup import escape

    from tidegate.terminal import describe_error

    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    words = error if isinstance(error, str) else describe_error(error)
    errors.print(f"[red]error:[/] {escape(words)}")


def allow_all_files() -> None:
    """Raise the limit of open files to the hard limit, as each connection needs one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("open file limit not raised", extra={"limit": soft, "error": str(error)})


def serving_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that prevent serving and whose messages contain a remedy."""
    from tidegate.host import PluginError
    from tidegate.schemas import DocumentError, ProfileFileError
    from tidegate_proxy.access.gate import CredentialFileError, RestrictionError
    from tidegate_proxy.configuration.config_file import ConfigError
    from tidegate_proxy.observability.tracing import TracingError
    from tidegate_proxy.transport.tls import TlsError
    from tidegate_proxy.tritons.backend import BackendError

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
    processes: "RunningTritons | None" = None,
    shard: "Shard | None" = None,
    taken_up: "Callable[[], None]" = lambda: None,
) -> "Proxy | None":
    """Serve until a signal; return the proxy, for its figures. SIGHUP reloads the configuration.

    `read_again`: reads the configuration again; `announce`: called once clients are served. `processes`: starts and
    stops workers for a controller; None: not supported. `shard`: source of the requests from frontends, which hold the
    clients; None: this process holds them. `taken_up`: called after another configuration was applied. Returns None if
    the signal came before serving began, such as while waiting for Tritons.
    """
    from tidegate.host import Plugins
    from tidegate_proxy.app.serve import serving
    from tidegate_proxy.base.watchdog import Watchdog

    loop = asyncio.get_running_loop()
    stop, again = asyncio.Event(), asyncio.Event()
    serves = False

    async def serve_until_stopped() -> "Proxy":
        nonlocal serves
        async with serving(settings, Plugins.installed(), processes, shard) as proxy:
            serves = True
            announce(proxy)
            watchdog = Watchdog(lambda: proxy.in_force.settings.liveness_timeout_s)
            reloading = loop.create_task(_reload(proxy, again, read_again, shard, taken_up))
            await stop.wait()
            reloading.cancel()
            watchdog.close()
        return proxy

    work = loop.create_task(serve_until_stopped())

    def end() -> None:
        stop.set()
        if not serves:
            work.cancel()

    def end_all() -> None:
        if shard:
            shard.ends_all()
        end()

    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, end_all)
    loop.add_signal_handler(signal.SIGHUP, again.set)
    try:
        return await work
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        log.info("stopped before serving")
        return None


def announce(proxy: "Proxy", title: str = "policy", *, is_whole: bool = True) -> None:
    """Print the models, the policy and the addresses.

    `title`: label of the line with the policy. `is_whole`: False if the addresses are printed once for several shards.
    """
    from rich.console import Console
    from rich.markup import escape

    from tidegate.report.number_format import plural

    # These objects stay. Each garbage collection over them would delay all requests by 40 ms.
    gc.collect()
    gc.freeze()
    scheduled = ", ".join(proxy.catalog.models) or "no model"
    console = Console(soft_wrap=True, highlight=False)
    workers = plural(len(proxy.catalog.workers), "worker")
    console.print(f"[bold]{title:<9}[/] {proxy.config.policy.name} over {workers}: {scheduled}")
    if not proxy.config.shadow:
        _announce_slos(console, proxy)
    else:
        assumed = ", ".join(proxy.rollout.shadow.assumed)
        judged = f"; judged as if scheduling: batched were set for {assumed}" if assumed else ""
        recorded = "; event_log stays empty" if proxy.config.event_log else ""
        console.print(
            f"[bold]shadow[/]    nothing is scheduled: all requests bypass the scheduler{escape(judged + recorded)}"
        )
    if proxy.config.canary is not None:
        share = f"{proxy.config.canary:.3g}" if proxy.config.canary < 0.001 else f"{100 * proxy.config.canary:g} %"
        console.print(
            f"[bold]canary[/]    {share} of the time all requests are scheduled, else all bypass the scheduler"
        )
    if is_whole:
        announce_addresses(proxy.address, proxy.http_address, proxy.metrics_address, proxy.has_dashboard)


def _announce_slos(console: "Console", proxy: "Proxy") -> None:
    """Print by which SLO requests are rejected, and by which they are answered late."""
    from rich.markup import escape

    effects = {
        "reject": "requests that cannot meet it are rejected (on_deadline_miss: serve answers them late)",
        "serve": "requests that cannot meet it are answered late",
    }
    for action, effect in effects.items():
        slos = [
            f"{model.name} {model.slo_ns / 1e6:g} ms"
            for model in proxy.catalog.models.values()
            if model.slo_ns is not None and model.on_deadline_miss == action
        ]
        if slos:
            console.print(f"[bold]SLO[/]       {escape(', '.join(slos))}: {effect}")


def announce_addresses(grpc: str, http: str, metrics: str, has_dashboard: bool = False) -> None:
    """Print the addresses for clients: HOST:PORT of `grpc`, `http` and `metrics`; an empty one is not served.

    The last line is printed when all are ready. `has_dashboard`: whether the metrics port serves the dashboard.
    """
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    if http:
        console.print(f"[bold]HTTP[/]      {http}")
    if metrics:
        console.print(f"[bold]metrics[/]   {metrics}/metrics")
        if has_dashboard:
            console.print(f"[bold]dashboard[/] http://{metrics}/dashboard")
    console.print(f"[bold]gRPC[/]      {grpc}")
    console.file.flush()


async def _reload(
    proxy: "Proxy",
    wanted: asyncio.Event,
    read_again: "Callable[[], ServeConfig]",
    shard: "Shard | None",
    taken_up: "Callable[[], None]",
) -> None:
    from tidegate_proxy.base.internal_errors import faults

    while True:
        await wanted.wait()
        wanted.clear()
        try:
            await proxy.reconfigure(read_again())
            if shard:
                shard.took_up()
            taken_up()
        except Exception as error:  # the next one may be better
            log.error("configuration not applied, nothing has changed", extra={"error": str(error)})
            if not isinstance(error, (*serving_errors(), ValueError)):
                faults.report("taking up a configuration", error)
