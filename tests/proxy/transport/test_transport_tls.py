"""Both transports over TLS: what is agreed on in the handshake, whose certificates are trusted, names, new files."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import ngh2
import pytest
import trustme
from ngh2.enums import ErrorCode

from tests.conftest import eventually
from tests.proxy.transport.conftest import ECHO, LoopThread, config_of, echo, new_server
from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.transport import CallFailed, Channel, Http2Server, RpcServer, ask
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.transport.http2 import client
from tidegate_proxy.transport.http2.client import ClientConnection
from tidegate_proxy.transport.http2.server import ServerConnection

NAME = "inference.example"


@dataclass
class Files:
    """Certificates of one authority."""

    folder: Path
    authority: trustme.CA

    @property
    def ca(self) -> Path:
        """Its own."""
        path = self.folder / "ca.pem"
        path.write_bytes(self.authority.cert_pem.bytes())
        return path

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        issued = self.authority.issue_cert(NAME)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return cert, key


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Those that are trusted."""
    return Files(tmp_path, trustme.CA())


@pytest.fixture
def strangers(tmp_path: Path) -> Files:
    """Those of somebody else."""
    folder = tmp_path / "strangers"
    folder.mkdir()
    return Files(folder, trustme.CA())


@pytest.fixture
def serve_tls(loop: LoopThread) -> Iterator[Callable[[ServerTls], int]]:
    """`serve_tls(tls)`: a server that echoes; its port."""
    servers: list[RpcServer] = []

    def start(tls: ServerTls) -> int:
        server = loop.call(lambda: new_server(config_of(), echo, ClientBounds()))
        servers.append(server)
        return loop.run(server.listen("127.0.0.1:0", tls))

    yield start
    for server in servers:
        loop.run(server.stop(0))


def _outcome(port: int, ca: Path, own: tuple[Path, Path] | None = None) -> bytes | grpc.StatusCode:
    cert, key = (path.read_bytes() for path in own) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key, cert)
    options = [("grpc.ssl_target_name_override", NAME)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        try:
            answer: bytes = channel.unary_unary(ECHO)(bytes(1 << 20), timeout=60)
        except grpc.RpcError as error:
            return error.code()
        return answer


def test_clients_over_tls(files: Files, strangers: Files, serve_tls: Callable[[ServerTls], int]) -> None:
    cert, key = files.issue("server")
    port = serve_tls(ServerTls(cert=cert, key=key))
    assert _outcome(port, files.ca) == bytes(1 << 20)
    assert _outcome(port, strangers.ca) is grpc.StatusCode.UNAVAILABLE
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:  # is no client of TLS
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        try:
            while plain.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    assert _outcome(port, files.ca) == bytes(1 << 20)


def test_clients_with_certificates(files: Files, strangers: Files, serve_tls: Callable[[ServerTls], int]) -> None:
    cert, key = files.issue("server")
    port = serve_tls(ServerTls(cert=cert, key=key, client_ca=files.ca))
    assert _outcome(port, files.ca, files.issue("client")) == bytes(1 << 20)
    assert _outcome(port, files.ca) is grpc.StatusCode.UNAVAILABLE
    assert _outcome(port, files.ca, strangers.issue("client")) is grpc.StatusCode.UNAVAILABLE


def test_http2_is_agreed_on_in_the_handshake(files: Files, serve_tls: Callable[[ServerTls], int]) -> None:
    cert, key = files.issue("server")
    port = serve_tls(ServerTls(cert=cert, key=key))
    context = ssl.create_default_context(cafile=files.ca)
    context.set_alpn_protocols(["http/1.1", "h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as secure,
    ):
        assert secure.selected_alpn_protocol() == "h2"
        assert secure.version() in {"TLSv1.2", "TLSv1.3"}


def test_new_certificates_are_taken_up(files: Files, strangers: Files, serve_tls: Callable[[ServerTls], int]) -> None:
    cert, key = files.issue("server")
    port = serve_tls(ServerTls(cert=cert, key=key))
    assert _outcome(port, files.ca) == bytes(1 << 20)
    for old, new in zip((key, cert), reversed(strangers.issue("server")), strict=True):
        new.replace(old)
    eventually(lambda: _outcome(port, strangers.ca) == bytes(1 << 20), "the new certificate")


class MutePeer:
    """Speaks HTTP/2 over TLS in a thread, reads on, and never answers the close of a connection."""

    def __init__(self, secure: ssl.SSLSocket, role: ngh2.Role, *, goes_away: bool = False) -> None:
        self._socket = secure
        self._http2 = ngh2.Connection(role)
        self._http2.initiate_connection()
        if goes_away:
            self._http2.send_goaway(ErrorCode.NO_ERROR)
        self._socket.sendall(self._http2.data_to_send())

    def close(self) -> None:
        """End the connection."""
        self._socket.detach()


@pytest.fixture
def mute_server(files: Files) -> Iterator[Callable[[bool], int]]:
    """`mute_server(goes_away)`: a server that never answers the close of a connection; its port."""
    cert, key = files.issue("mute")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))
    peers: list[MutePeer] = []

    def accept(goes_away: bool) -> None:
        plain, _ = listener.accept()
        peers.append(MutePeer(context.wrap_socket(plain, server_side=True), ngh2.Role.SERVER, goes_away=goes_away))

    with ThreadPoolExecutor(1) as pool, listener:

        def start(goes_away: bool) -> int:
            pool.submit(accept, goes_away)
            port: int = listener.getsockname()[1]
            return port

        yield start
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("goes_away", [False, True])
def test_a_channel_closes_though_its_server_does_not_answer_that(
    files: Files, mute_server: Callable[[bool], int], monkeypatch: pytest.MonkeyPatch, goes_away: bool
) -> None:
    monkeypatch.setattr(client, "CLOSE_S", 0.1)
    connections: list[ClientConnection] = []

    class Watched(ClientConnection):
        def opened(self, transport: asyncio.Transport) -> None:
            connections.append(self)
            super().opened(transport)

    monkeypatch.setattr(client, "ClientConnection", Watched)

    async def run() -> None:
        channel = Channel(f"127.0.0.1:{port}", TritonTls(ca=files.ca, server_name=NAME))
        call = channel.unary(ECHO, b"", lambda *_: None)
        while not connections or (goes_away and connections[0].is_open):
            await asyncio.sleep(0.001)
        if goes_away:
            call.cancel()
        await channel.close()
        assert connections[0].transport is None

    port = mute_server(goes_away)
    asyncio.run(run())


@pytest.mark.parametrize("leaving", ["shut down", "terminated"])
async def test_a_connection_is_cut_off_though_its_client_does_not_answer_its_close(files: Files, leaving: str) -> None:
    cert, key = files.issue("server")
    connections: list[ServerConnection] = []

    class Watched(Http2Server):
        def admits(self, connection: ServerConnection) -> bool:
            connections.append(connection)
            return super().admits(connection)

    def connect(port: int) -> MutePeer:
        context = ssl.create_default_context(cafile=files.ca)
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        return MutePeer(context.wrap_socket(plain, server_hostname=NAME), ngh2.Role.CLIENT)

    server = Watched(echo, config_of().limits, ClientBounds())
    peer = await asyncio.to_thread(connect, await server.listen("127.0.0.1:0", ServerTls(cert=cert, key=key)))
    (connection,) = connections
    if leaving == "shut down":
        connection.shut_down()
        connection.shut_down()
    else:
        connection.terminate(ErrorCode.NO_ERROR, "idle")
    assert not connection.ended.is_set()
    connection.abort("it does not leave")
    async with asyncio.timeout(60):
        await connection.ended.wait()
    await server.stop(0)
    peer.close()


@pytest.fixture
def grpcio(files: Files) -> Iterator[Callable[[bool], int]]:
    """`grpcio(mutual)`: grpcio's own server; its port."""
    servers: list[grpc.Server] = []

    def made(mutual: bool) -> int:
        cert, key = files.issue("triton")
        ca = files.ca.read_bytes()
        credentials = grpc.ssl_server_credentials(
            [(key.read_bytes(), cert.read_bytes())], ca if mutual else None, mutual
        )
        server = grpc.server(ThreadPoolExecutor(2))
        handlers = {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, _context: request)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", handlers)])
        servers.append(server)
        port: int = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        return port

    yield made
    for server in servers:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("mutual", "trusted", "own", "name", "answered"),
    [
        (False, True, False, NAME, True),
        (False, False, False, NAME, False),
        (False, True, False, "other.example", False),
        (True, True, True, NAME, True),
        (True, True, False, NAME, False),
    ],
    ids=["tls", "a stranger", "another name", "mutual", "no certificate"],
)
def test_tritons_over_tls(
    loop: LoopThread,
    files: Files,
    strangers: Files,
    grpcio: Callable[[bool], int],
    *,
    mutual: bool,
    trusted: bool,
    own: bool,
    name: str,
    answered: bool,
) -> None:
    cert, key = files.issue("client") if own else (None, None)
    tls = TritonTls(ca=files.ca if trusted else strangers.ca, cert=cert, key=key, server_name=name)
    port = grpcio(mutual)
    channel = loop.call(lambda: Channel(f"127.0.0.1:{port}", tls))
    try:
        if answered:
            assert loop.run(ask(channel, ECHO, bytes(1 << 20), timeout_s=20)) == bytes(1 << 20)
        else:
            with pytest.raises(CallFailed) as failed:
                loop.run(ask(channel, ECHO, b"", timeout_s=20))
            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    finally:
        loop.run(channel.close())
