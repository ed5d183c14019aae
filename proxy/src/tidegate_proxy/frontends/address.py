"""Addresses of shards, and mutual authentication of frontends and shards.

On different machines both prove that they know the same secret, before any other message. Each answers a random number
of the other with an HMAC (RFC 2104) over both numbers and its own role. The secret itself is never sent, and no answer
can be replayed or reflected. Later messages are neither encrypted nor signed: use TLS for that.
"""

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate_proxy.access.gate import CredentialFileError
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.config import LinksConfig, ServerTls, ShardConfig
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.frontends.frames import FrameType
from tidegate_proxy.frontends.link import Link, LinkEnd
from tidegate_proxy.transport.ports import bind
from tidegate_proxy.transport.tls import channel_context, server_context

log = logging.getLogger(__name__)


_NUMBER_BYTES: Final = 32
_SHORTEST: Final = 16
_WITHIN_S: Final = 5.0
"""Time limit of the authentication, in seconds."""
_LARGEST: Final = 256
"""No frame may have more bytes before that."""


def secret_in(path: Path) -> bytes:
    """Read a secret from a file, without surrounding blanks. Raises CredentialFileError."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise CredentialFileError(f"shard_links.secret_file: {path}: {error.strerror}") from error
    if len(secret) < _SHORTEST:
        raise CredentialFileError(
            f"shard_links.secret_file: {path} has {len(secret)} bytes: it must have {_SHORTEST} or more, "
            "as `openssl rand -hex 32` makes them"
        )
    return secret


class _Handshake:
    """The end of a link of which it is not known who is at the other one."""

    def __init__(self, link: Link, secret: bytes, lost: Callable[[], None]) -> None:
        self.link = link
        self._secret = secret
        self._lost = lost
        self.drawn = secrets.token_bytes(_NUMBER_BYTES)
        link.limit(_LARGEST)
        self._timer = asyncio.get_running_loop().call_later(_WITHIN_S, link.abort)

    def lost(self) -> None:
        """The other end is gone, or was sent away."""
        self._timer.cancel()
        self._lost()

    def proof(self, role: bytes, theirs: bytes, ours: bytes) -> bytes:
        """Return the proof of identity of the process with this role."""
        return hmac.digest(self._secret, role + theirs + ours, "sha256")

    def is_proof(self, given: bytes, role: bytes, theirs: bytes, ours: bytes) -> bool:
        """Whether it is what who has this role answers."""
        return hmac.compare_digest(given, self.proof(role, theirs, ours))

    def go_on(self, make_end: Callable[[Link], LinkEnd]) -> None:
        """The other one is who it should be."""
        self._timer.cancel()
        self.link.limit(None)
        self.link.hand_over(make_end)


class ShardHandshake(_Handshake):
    """Shard's end of a link before authentication: sends a challenge and checks the frontend's proof."""

    def __init__(self, link: Link, secret: bytes, make_end: Callable[[Link], LinkEnd]) -> None:
        """Create the frontend unproven. `make_end`: creates the end that follows after the proof.

        `secret`: common secret of both ends.
        """
        super().__init__(link, secret, lambda: None)
        self._make_end = make_end
        link.send(FrameType.CHALLENGE, payload=self.drawn)

    def take(self, kind: int, _number: int, payload: bytes) -> None:
        """Check the frontend's number and proof."""
        theirs, given = payload[:_NUMBER_BYTES], payload[_NUMBER_BYTES:]
        if kind != FrameType.PROOF or not self.is_proof(given, b"frontend", self.drawn, theirs):
            self.link.abort()
            return
        self.link.send(FrameType.PROVEN, payload=self.proof(b"shard", theirs, self.drawn))
        self.go_on(self._make_end)


class FrontendHandshake(_Handshake):
    """Frontend's end of a link before authentication: answers the challenge, and checks the shard's proof."""

    def __init__(
        self, link: Link, secret: bytes, make_end: Callable[[Link], LinkEnd], refused: Callable[[], None]
    ) -> None:
        """Create the shard unproven.

        `secret`: common secret of both ends. `make_end`: creates the end that follows after the proof; `refused`:
        called if the link ends before.
        """
        super().__init__(link, secret, refused)
        self._make_end = make_end
        self._theirs = b""

    def take(self, kind: int, _number: int, payload: bytes) -> None:
        """Take the shard's number, then its proof."""
        if kind == FrameType.CHALLENGE and not self._theirs:
            self._theirs = payload
            self.link.send(FrameType.PROOF, payload=self.drawn + self.proof(b"frontend", payload, self.drawn))
        elif kind == FrameType.PROVEN and self._theirs and self.is_proof(payload, b"shard", self.drawn, self._theirs):
            self.go_on(self._make_end)
        else:
            self.link.abort()


MakeEnd = Callable[[Link], LinkEnd]
_CONNECT_S: Final = 5.0
"""How long it may take to reach another machine."""
_SILENCE: Final = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))
"""Seconds, seconds and times: so soon a machine is noticed that is no more."""
_UNTAKEN_MS: Final = 5000
"""So long what was sent may stay unacknowledged."""


class LocalAddress:
    """Address of a Unix socket in a folder that only its owner can access."""

    is_elsewhere = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    async def connect(self, make_end: MakeEnd, _refused: Callable[[], None]) -> None:
        """Connect to the shard. Raises OSError."""
        await asyncio.get_running_loop().create_unix_connection(lambda: Link(make_end), str(self._path))

    async def listen(self, make_end: MakeEnd) -> asyncio.AbstractServer:
        """Accept frontends. Raises OSError."""
        self._path.unlink(missing_ok=True)
        return await asyncio.get_running_loop().create_unix_server(lambda: Link(make_end), str(self._path))


class RemoteAddress:
    """Address of a TCP port with authentication by a secret, by TLS, or by both."""

    is_elsewhere = True

    def __init__(self, shard: ShardConfig, links: LinksConfig) -> None:
        """Create the remote address. Raises CredentialFileError if the secret cannot be read."""
        assert shard.address is not None, "it is on another machine"
        self._address = shard.address
        self._listen = shard.listen or f"0.0.0.0:{port_of(shard.address)}"
        self._tls = links.tls
        self._secret = secret_in(links.secret_file) if links.secret_file else None

    def __str__(self) -> str:
        return self._address

    async def connect(self, make_end: MakeEnd, refused: Callable[[], None]) -> None:
        """Connect to the shard, after resolving its name. Raises OSError. `refused`: called if authentication fails."""
        host = host_of(self._address).strip("[]")

        def end(link: Link) -> LinkEnd:
            _notice_silence(link.connection)
            return FrontendHandshake(link, self._secret, make_end, refused) if self._secret else make_end(link)

        async with asyncio.timeout(_CONNECT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: Link(end),
                host,
                port_of(self._address),
                ssl=self._frontend_context(),
                server_hostname=host if self._tls else None,
            )

    async def listen(self, make_end: MakeEnd) -> asyncio.AbstractServer:
        """Accept frontends. Raises OSError, TlsError."""

        def end(link: Link) -> LinkEnd:
            _notice_silence(link.connection)
            return ShardHandshake(link, self._secret, make_end) if self._secret else make_end(link)

        tls = self._tls
        context = server_context(ServerTls(cert=tls.cert, key=tls.key, client_ca=tls.ca)) if tls else None
        return await asyncio.get_running_loop().create_server(lambda: Link(end), sock=bind(self._listen), ssl=context)

    def _frontend_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, made for each link, as files may have changed. Raises TlsError."""
        tls = self._tls
        return channel_context(TritonTls(ca=tls.ca, cert=tls.cert, key=tls.key), ()) if tls else None


ShardAddress = LocalAddress | RemoteAddress


def _notice_silence(connection: socket.socket | None) -> None:
    """Have the kernel end a link whose other machine is no more."""
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENCE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN_MS)
