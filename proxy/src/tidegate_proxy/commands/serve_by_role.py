"""`tidegate serve` in several processes: frontends, shards, or both under a supervisor."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tidegate_proxy.commands.running import (
    announce,
    announce_addresses,
    run_proxy,
    say_error,
    serving_errors,
    tell_tally,
)

if TYPE_CHECKING:
    import socket

    from tidegate_proxy.app.proxy import Proxy
    from tidegate_proxy.configuration.config import ServeConfig
    from tidegate_proxy.configuration.reload import KeptConfig
    from tidegate_proxy.frontends.address import ShardAddress
    from tidegate_proxy.frontends.shard import Shard

log = logging.getLogger(__name__)

ReadAgain = Callable[[], "ServeConfig"]
_KEPT, _OF_FRONTENDS = ".config", "frontends.config"
"""Names of the files that contain the current configuration for a process that is restarted."""


def serve_by_role(settings: "ServeConfig", read_again: ReadAgain, role: str, number: int | None) -> int:
    """Serve until a signal; return the exit status. `number`: that of the shard, if `role` is `shard`.

    Raises OSError if ports cannot be bound, CredentialFileError, DocumentError.
    """
    from tidegate_proxy.configuration.config_file import assignment_of

    if role == "all" and not settings.shards:
        return _serve_here(settings, read_again)
    if not settings.shards:
        raise typer.BadParameter(f"{role}: the configuration names no `shards`", param_hint="--role")
    assignment_of(settings)  # what is wrong with it should not have to wait for Tritons
    if role == "all":
        return _serve_here(settings, read_again)
    if not settings.shards[0].address:
        words = (
            f"{role}: `shards` without `address` run beside their frontends: give each HOST:PORT, or leave --role out"
        )
        raise typer.BadParameter(words, param_hint="--role")
    if number is None:
        return _serve_frontends(settings, read_again)
    if number >= len(settings.shards):
        raise typer.BadParameter(f"{number}: there are {len(settings.shards)}, the first is 0", param_hint="--shard")
    return _serve_shard(settings, read_again, number)


def _serve_here(settings: "ServeConfig", read_again: ReadAgain) -> int:
    """Frontends with all shards, or before a single one that has all models and serves the metrics itself."""
    from functools import partial

    from tidegate_proxy.frontends.address import LocalAddress
    from tidegate_proxy.frontends.shard import Shard
    from tidegate_proxy.frontends.supervisor import supervise

    count = len(settings.shards)
    ports = _Ports(settings, metrics=count > 0)
    hold_s = settings.shard_links.reconnect_timeout_s if count else None

    def run_shard(number: int | None, path: Path) -> int:
        shard = Shard(
            LocalAddress(path),
            ports.grpc_number,
            ports.http_number,
            settings.frontends,
            ports.metrics_number,
            hold_s,
            number,
        )
        ports.close()  # the frontends have it
        return _run_shard(settings, read_again, shard, _kept(path.with_suffix(_KEPT), settings))

    def run_frontend(folder: Path, paths: Sequence[Path]) -> int:
        kept = _kept(folder / _OF_FRONTENDS, settings)
        return _run_frontend(settings, read_again, ports, [LocalAddress(path) for path in paths], kept)

    shards = [partial(run_shard, number) for number in (range(count) if count else (None,))]
    return supervise(shards, run_frontend, settings.frontends)


def _serve_frontends(settings: "ServeConfig", read_again: ReadAgain) -> int:
    """Frontends alone, whose shards are on other machines."""
    from tidegate_proxy.frontends.address import RemoteAddress
    from tidegate_proxy.frontends.supervisor import supervise

    ports = _Ports(settings, metrics=True)
    shards = [RemoteAddress(shard, settings.shard_links) for shard in settings.shards]
    if settings.frontends == 1:
        return _run_frontend(settings, read_again, ports, shards, None, is_alone=True)

    def run_frontend(folder: Path, _nothing: Sequence[Path]) -> int:
        kept = _kept(folder / _OF_FRONTENDS, settings)
        return _run_frontend(settings, read_again, ports, shards, kept, is_alone=True)

    return supervise([], run_frontend, settings.frontends)


def _serve_shard(settings: "ServeConfig", read_again: ReadAgain, number: int) -> int:
    """One shard alone, whose frontends are on other machines. Its metrics are shown by them, and by itself."""
    from tidegate_proxy.configuration.addresses import port_of
    from tidegate_proxy.frontends.address import RemoteAddress
    from tidegate_proxy.frontends.shard import Shard

    listen = settings.listen
    address = RemoteAddress(settings.shards[number], settings.shard_links)
    http_port = port_of(listen.http) if listen.http else None
    shard = Shard(
        address,
        port_of(listen.grpc),
        http_port,
        0,
        reconnect_timeout_s=settings.shard_links.reconnect_timeout_s,
        number=number,
    )
    return _run_shard(settings, read_again, shard)


def _run_shard(settings: "ServeConfig", read_again: ReadAgain, shard: "Shard", kept: "KeptConfig | None" = None) -> int:
    """`kept`: current configuration if this process replaces another; None: no process does so here."""
    import uvloop

    from tidegate_proxy.configuration.config_file import of_shard
    from tidegate_proxy.observability.logs import add_log_fields

    shards, number = len(settings.shards), shard.number
    read = in_force = kept.read() if kept else settings
    if number is not None:
        add_log_fields(shard=number)

    def part(config: "ServeConfig") -> "ServeConfig":
        return config if number is None else of_shard(config, number, shards)

    def tell(proxy: "Proxy") -> None:
        if number is None:
            announce(proxy)
        else:
            announce(proxy, f"shard {number}", is_whole=number == 0 and not shard.is_elsewhere)

    def part_read_again() -> "ServeConfig":
        nonlocal read
        read = read_again()
        return part(read)

    def taken_up() -> None:
        if kept:
            kept.keep(read)

    async def serve() -> None:
        proxy = await run_proxy(part(in_force), part_read_again, tell, shard=shard, taken_up=taken_up)
        if proxy:
            tell_tally(proxy)

    try:
        uvloop.run(serve())
    except serving_errors() as error:
        say_error(error if number is None else f"shard {number}: {error}")
        return 1
    return 0


def _run_frontend(
    settings: "ServeConfig",
    read_again: ReadAgain,
    ports: "_Ports",
    shards: "Sequence[ShardAddress]",
    kept: "KeptConfig | None",
    *,
    is_alone: bool = False,
) -> int:
    import uvloop

    from tidegate_proxy.frontends.frontend import Frontend

    async def have_clients() -> None:
        def listening() -> None:
            if is_alone:
                announce_addresses(*ports.addresses(settings))

        frontend = Frontend(
            kept.read() if kept else settings,
            shards,
            ports.grpc,
            ports.http,
            ports.metrics,
            on_listening=listening,
            on_taken_up=kept.keep if kept else lambda _config: None,
        )
        await frontend.run_as_process(read_again)

    uvloop.run(have_clients())
    return 0


def _kept(file: Path, settings: "ServeConfig") -> "KeptConfig":
    from tidegate_proxy.configuration.reload import KeptConfig

    return KeptConfig(file, settings)


class _Ports:
    """Where clients come in, bound before anybody listens. Raises OSError."""

    def __init__(self, settings: "ServeConfig", *, metrics: bool) -> None:
        from tidegate_proxy.transport.ports import bind

        def port(address: str | None) -> "socket.socket | None":
            return bind(address, reuse_port=settings.listen.reuse_port) if address else None

        self.grpc = bind(settings.listen.grpc, reuse_port=settings.listen.reuse_port)
        self.http = port(settings.listen.http)
        self.metrics = port(settings.listen.metrics) if metrics else None

    @property
    def grpc_number(self) -> int:
        """Port of the gRPC service."""
        return int(self.grpc.getsockname()[1])

    @property
    def http_number(self) -> int | None:
        """Port of the HTTP service; None if there is none."""
        return self.http.getsockname()[1] if self.http else None

    @property
    def metrics_number(self) -> int | None:
        """Port of the metrics; None if there is none, or a shard serves them."""
        return self.metrics.getsockname()[1] if self.metrics else None

    def addresses(self, settings: "ServeConfig") -> tuple[str, str, str]:
        """Return the addresses of gRPC, HTTP and metrics; "" for a service that there is not."""
        from tidegate_proxy.configuration.addresses import with_port

        listen = settings.listen
        return (
            with_port(listen.grpc, self.grpc_number),
            with_port(listen.http, self.http_number) if listen.http and self.http_number else "",
            with_port(listen.metrics, self.metrics_number) if listen.metrics and self.metrics_number else "",
        )

    def close(self) -> None:
        """Others have them."""
        for socket in (self.grpc, self.http, self.metrics):
            if socket:
                socket.close()
