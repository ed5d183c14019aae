"""Where fronts find a home, and homes listen for fronts: a socket of this machine, or a port that others reach, too."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.config import HomeConfig, ServerTls
from tidegate_proxy.configuration.links import LinksConfig
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.frontends.handshake import FrontUnproven, HomeUnproven, secret_in
from tidegate_proxy.frontends.link import Link, LinkEnd
from tidegate_proxy.transport.ports import bind
from tidegate_proxy.transport.tls import channel_context, server_context

log = logging.getLogger(__name__)

MakeEnd = Callable[[Link], LinkEnd]
_CONNECT_S: Final = 5.0
"""How long it may take to reach another machine."""
_SILENCE: Final = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))
"""Seconds, seconds and times: so soon a machine is noticed that is no more."""
_UNTAKEN_MS: Final = 5000
"""So long what was sent may stay unacknowledged."""


class LocalAddress:
    """A socket in a folder that only its owner enters."""

    is_elsewhere = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    async def connect(self, make_end: MakeEnd, _refused: Callable[[], None]) -> None:
        """Link to the home. Raises OSError."""
        await asyncio.get_running_loop().create_unix_connection(lambda: Link(make_end), str(self._path))

    async def listen(self, make_end: MakeEnd) -> asyncio.AbstractServer:
        """Let fronts in. Raises OSError."""
        self._path.unlink(missing_ok=True)
        return await asyncio.get_running_loop().create_unix_server(lambda: Link(make_end), str(self._path))


class RemoteAddress:
    """A port, where both ends prove who they are: by a secret, by TLS, or by both."""

    is_elsewhere = True

    def __init__(self, home: HomeConfig, links: LinksConfig) -> None:
        """Raises CredentialFileError."""
        assert home.address is not None, "it is on another machine"
        self._address = home.address
        self._listen = home.listen or f"0.0.0.0:{port_of(home.address)}"
        self._tls = links.tls
        self._secret = secret_in(links.secret_file) if links.secret_file else None

    def __str__(self) -> str:
        return self._address

    async def connect(self, make_end: MakeEnd, refused: Callable[[], None]) -> None:
        """Link to the home; its name is looked up anew. Raises OSError. `refused`: called where it lets nobody in."""
        host = host_of(self._address).strip("[]")

        def end(link: Link) -> LinkEnd:
            _notice_silence(link.connection)
            return HomeUnproven(link, self._secret, make_end, refused) if self._secret else make_end(link)

        async with asyncio.timeout(_CONNECT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: Link(end),
                host,
                port_of(self._address),
                ssl=self._front_context(),
                server_hostname=host if self._tls else None,
            )

    async def listen(self, make_end: MakeEnd) -> asyncio.AbstractServer:
        """Let fronts in. Raises OSError, TlsError."""

        def end(link: Link) -> LinkEnd:
            _notice_silence(link.connection)
            return FrontUnproven(link, self._secret, make_end) if self._secret else make_end(link)

        tls = self._tls
        context = server_context(ServerTls(cert=tls.cert, key=tls.key, client_ca=tls.ca)) if tls else None
        return await asyncio.get_running_loop().create_server(lambda: Link(end), sock=bind(self._listen), ssl=context)

    def _front_context(self) -> ssl.SSLContext | None:
        """Made anew for each link, as files may have changed. Raises TlsError."""
        tls = self._tls
        return channel_context(TritonTls(ca=tls.ca, cert=tls.cert, key=tls.key), ()) if tls else None


HomeAddress = LocalAddress | RemoteAddress


def _notice_silence(connection: socket.socket | None) -> None:
    """Have the kernel end a link whose other machine is no more."""
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENCE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN_MS)
