"""`tidegate serve` by several processes: fronts, homes, or both under a supervisor."""

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
    from tidegate_proxy.frontends.address import HomeAddress
    from tidegate_proxy.frontends.home import Home

log = logging.getLogger(__name__)

ReadAgain = Callable[[], "ServeConfig"]
_KEPT, _OF_FRONTS = ".config", "fronts.config"
"""Where the configuration in force is kept for a process that is started again."""


def serve_by_role(settings: "ServeConfig", read_again: ReadAgain, role: str, number: int | None) -> int:
    """Serve until a signal says to stop; the exit status. `number`: of the home, where `role` is `home`.

    Raises OSError for ports that cannot be bound, CredentialFileError, DocumentError.
    """
    from tidegate_proxy.configuration.home_config import assignment_of

    if role == "all" and not settings.homes:
        return _serve_before_one_home(settings, read_again)
    if not settings.homes:
        raise typer.BadParameter(f"{role}: the configuration names no `homes`", param_hint="--role")
    assignment_of(settings)  # what is wrong with it should not have to wait for Tritons
    if role == "all":
        return _serve_with_homes(settings, read_again)
    if not settings.homes[0].address:
        words = f"{role}: `homes` without `address` run beside their fronts: give each HOST:PORT, or leave --role out"
        raise typer.BadParameter(words, param_hint="--role")
    if number is None:
        return _serve_fronts(settings, read_again)
    if number >= len(settings.homes):
        raise typer.BadParameter(f"{number}: there are {len(settings.homes)}, the first is 0", param_hint="--home")
    return _serve_home(settings, read_again, number)


def _serve_before_one_home(settings: "ServeConfig", read_again: ReadAgain) -> int:
    from tidegate_proxy.frontends.address import LocalAddress
    from tidegate_proxy.frontends.home import Home
    from tidegate_proxy.frontends.supervisor import supervise

    ports = _Ports(settings, metrics=False)

    def run_home(path: Path) -> int:
        home = Home(LocalAddress(path), ports.grpc_number, ports.http_number, settings.fronts)
        ports.close()  # the fronts have it
        return _run_home(settings, read_again, home, _kept(path.with_suffix(_KEPT), settings))

    return supervise([run_home], _front(settings, read_again, ports), settings.fronts)


def _serve_with_homes(settings: "ServeConfig", read_again: ReadAgain) -> int:
    from functools import partial

    from tidegate_proxy.frontends.address import LocalAddress
    from tidegate_proxy.frontends.home import Home
    from tidegate_proxy.frontends.supervisor import supervise

    ports = _Ports(settings, metrics=True)

    def run_home(number: int, path: Path) -> int:
        home = Home(
            LocalAddress(path),
            ports.grpc_number,
            ports.http_number,
            settings.fronts,
            ports.metrics_number,
            settings.links.hold_s,
            number,
        )
        ports.close()
        return _run_home(settings, read_again, home, _kept(path.with_suffix(_KEPT), settings))

    homes = [partial(run_home, number) for number in range(len(settings.homes))]
    return supervise(homes, _front(settings, read_again, ports), settings.fronts)


def _serve_fronts(settings: "ServeConfig", read_again: ReadAgain) -> int:
    """Fronts alone, whose homes are on other machines."""
    from tidegate_proxy.frontends.address import RemoteAddress
    from tidegate_proxy.frontends.supervisor import supervise

    ports = _Ports(settings, metrics=True)
    homes = [RemoteAddress(home, settings.links) for home in settings.homes]
    if settings.fronts == 1:
        return _run_front(settings, read_again, ports, homes, None, is_alone=True)

    def run_front(folder: Path, _nothing: Sequence[Path]) -> int:
        kept = _kept(folder / _OF_FRONTS, settings)
        return _run_front(settings, read_again, ports, homes, kept, is_alone=True)

    return supervise([], run_front, settings.fronts)


def _serve_home(settings: "ServeConfig", read_again: ReadAgain, number: int) -> int:
    """One home alone, whose fronts are on other machines. Its metrics are shown by them, and by itself."""
    from tidegate_proxy.configuration.addresses import port_of
    from tidegate_proxy.frontends.address import RemoteAddress
    from tidegate_proxy.frontends.home import Home

    listen = settings.listen
    address = RemoteAddress(settings.homes[number], settings.links)
    http_port = port_of(listen.http) if listen.http else None
    home = Home(address, port_of(listen.grpc), http_port, 0, hold_s=settings.links.hold_s, number=number)
    return _run_home(settings, read_again, home)


def _run_home(settings: "ServeConfig", read_again: ReadAgain, home: "Home", kept: "KeptConfig | None" = None) -> int:
    """`kept`: what is in force, where this one is started in the place of another; None: nobody does so here."""
    import uvloop

    from tidegate_proxy.configuration.home_config import of_home
    from tidegate_proxy.observability.logs import sign

    homes, number = len(settings.homes), home.number
    read = in_force = kept.read() if kept else settings
    if number is not None:
        sign(home=number)

    def part(config: "ServeConfig") -> "ServeConfig":
        return config if number is None else of_home(config, number, homes)

    def tell(proxy: "Proxy") -> None:
        if number is None:
            announce(proxy)
        else:
            announce(proxy, f"home {number}", is_whole=number == 0 and not home.is_elsewhere)

    def part_read_again() -> "ServeConfig":
        nonlocal read
        read = read_again()
        return part(read)

    def taken_up() -> None:
        if kept:
            kept.keep(read)

    async def serve() -> None:
        proxy = await run_proxy(part(in_force), part_read_again, tell, home=home, taken_up=taken_up)
        if proxy:
            tell_tally(proxy)

    try:
        uvloop.run(serve())
    except serving_errors() as error:
        say_error(error if number is None else f"home {number}: {error}")
        return 1
    return 0


def _front(settings: "ServeConfig", read_again: ReadAgain, ports: "_Ports") -> Callable[[Path, Sequence[Path]], int]:
    def run_front(folder: Path, paths: Sequence[Path]) -> int:
        from tidegate_proxy.frontends.address import LocalAddress

        kept = _kept(folder / _OF_FRONTS, settings)
        return _run_front(settings, read_again, ports, [LocalAddress(path) for path in paths], kept)

    return run_front


def _run_front(
    settings: "ServeConfig",
    read_again: ReadAgain,
    ports: "_Ports",
    homes: "Sequence[HomeAddress]",
    kept: "KeptConfig | None",
    *,
    is_alone: bool = False,
) -> int:
    import uvloop

    from tidegate_proxy.frontends.front import Front

    async def have_clients() -> None:
        def listening() -> None:
            if is_alone:
                announce_addresses(*ports.addresses(settings))

        front = Front(
            kept.read() if kept else settings,
            homes,
            ports.grpc,
            ports.http,
            ports.metrics,
            on_listening=listening,
            on_taken_up=kept.keep if kept else lambda _config: None,
        )
        await front.run_as_process(read_again)

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
        """The port's number, here and below."""
        return int(self.grpc.getsockname()[1])

    @property
    def http_number(self) -> int | None:
        """None: it is not served."""
        return self.http.getsockname()[1] if self.http else None

    @property
    def metrics_number(self) -> int | None:
        """None: they are not shown, or the home does it."""
        return self.metrics.getsockname()[1] if self.metrics else None

    def addresses(self, settings: "ServeConfig") -> tuple[str, str, str]:
        """Where gRPC, HTTP and metrics are; "" is not served."""
        from tidegate_proxy.configuration.addresses import beside

        listen = settings.listen
        return (
            beside(listen.grpc, self.grpc_number),
            beside(listen.http, self.http_number) if listen.http and self.http_number else "",
            beside(listen.metrics, self.metrics_number) if listen.metrics and self.metrics_number else "",
        )

    def close(self) -> None:
        """Others have them."""
        for socket in (self.grpc, self.http, self.metrics):
            if socket:
                socket.close()
