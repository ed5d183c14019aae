"""TLS: real handshakes with what is made from the configuration, and words for files that cannot be used."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.transport.tls import (
    TlsError,
    channel_credentials,
    channel_options,
    server_context,
    server_credentials,
)
from tidegate_proxy.tritons.backend import SERVICE
from tidegate_proxy.tritons.embedded import EmbeddedTriton

LIVE = SERVICE + "ServerLive"
NAME = "inference.example"


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Issues our certificates."""
    return trustme.CA()


@pytest.fixture(scope="session")
def stranger() -> trustme.CA:
    """Another one."""
    return trustme.CA()


def _issue(folder: Path, authority: trustme.CA, name: str = "server", host: str = NAME) -> tuple[Path, Path]:
    issued = authority.issue_cert(host)
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return cert, key


def _trusted(folder: Path, authority: trustme.CA, name: str = "ca") -> Path:
    path = folder / f"{name}.pem"
    path.write_bytes(authority.cert_pem.bytes())
    return path


@pytest.fixture
def serve_grpc() -> Iterator[Callable[[grpc.ServerCredentials], str]]:
    """A gRPC server that answers every method with the bytes it was sent."""
    servers = []

    class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
        def service(self, handler_call_details: Any) -> Any:  # noqa: ANN401
            return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

    def serve(credentials: grpc.ServerCredentials) -> str:
        server = grpc.server(ThreadPoolExecutor(1), handlers=[Echo()])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in servers:
        server.stop(None)


def _call(address: str, tls: TritonTls) -> bytes | grpc.StatusCode:
    with grpc.secure_channel(address, channel_credentials(tls), options=channel_options(tls)) as channel:
        try:
            answer: bytes = channel.unary_unary(LIVE)(b"hello", timeout=60)
        except grpc.RpcError as error:
            return error.code()
        return answer


def test_grpc_over_tls(tmp_path: Path, authority: trustme.CA, stranger: trustme.CA, serve_grpc: Any) -> None:  # noqa: ANN401
    cert, key = _issue(tmp_path, authority)
    address = serve_grpc(server_credentials(ServerTls(cert=cert, key=key)))
    ca, other = _trusted(tmp_path, authority), _trusted(tmp_path, stranger, "other")
    assert _call(address, TritonTls(ca=ca, server_name=NAME)) == b"hello"
    assert _call(address, TritonTls(ca=ca)) is grpc.StatusCode.UNAVAILABLE
    assert _call(address, TritonTls(ca=other, server_name=NAME)) is grpc.StatusCode.UNAVAILABLE


def test_grpc_with_client_certificates(
    tmp_path: Path,
    authority: trustme.CA,
    stranger: trustme.CA,
    serve_grpc: Any,  # noqa: ANN401
) -> None:
    cert, key = _issue(tmp_path, authority)
    ca = _trusted(tmp_path, authority)
    address = serve_grpc(server_credentials(ServerTls(cert=cert, key=key, client_ca=ca)))
    for issuer, answer in ((authority, b"hello"), (stranger, grpc.StatusCode.UNAVAILABLE)):
        own_cert, own_key = _issue(tmp_path, issuer, "client")
        assert _call(address, TritonTls(ca=ca, cert=own_cert, key=own_key, server_name=NAME)) == answer
    assert _call(address, TritonTls(ca=ca, server_name=NAME)) is grpc.StatusCode.UNAVAILABLE


def test_grpc_takes_up_new_files(
    tmp_path: Path,
    authority: trustme.CA,
    stranger: trustme.CA,
    serve_grpc: Any,  # noqa: ANN401
) -> None:
    cert, key = _issue(tmp_path, authority)
    address = serve_grpc(server_credentials(ServerTls(cert=cert, key=key)))
    old = TritonTls(ca=_trusted(tmp_path, authority), server_name=NAME)
    new = TritonTls(ca=_trusted(tmp_path, stranger, "other"), server_name=NAME)
    assert (_call(address, old), _call(address, new)) == (b"hello", grpc.StatusCode.UNAVAILABLE)
    _issue(tmp_path, stranger)
    assert (_call(address, new), _call(address, old)) == (b"hello", grpc.StatusCode.UNAVAILABLE)


@asynccontextmanager
async def _serving_http(context: ssl.SSLContext) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


async def _ask(port: int, trusted: Path, own: tuple[Path, Path] | None = None, name: str | None = NAME) -> bytes:
    context = ssl.create_default_context(cafile=str(trusted))
    if name is None:
        context.check_hostname = False
    if own:
        context.load_cert_chain(*own)
    # Without a name, the handshake has none: it is an address that is connected to.
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name if name else "127.0.0.1"
    )
    try:
        writer.write(b"hello\n")
        return await reader.read()
    finally:
        writer.close()


def test_http_over_tls_takes_up_new_files(tmp_path: Path, authority: trustme.CA, stranger: trustme.CA) -> None:
    async def scenario() -> None:
        cert, key = _issue(tmp_path, authority)
        ca, other = _trusted(tmp_path, authority), _trusted(tmp_path, stranger, "other")
        async with _serving_http(server_context(ServerTls(cert=cert, key=key))) as port:
            assert await _ask(port, ca) == b"hello\n"
            with pytest.raises(ssl.SSLCertVerificationError):
                await _ask(port, other)
            _issue(tmp_path, stranger)
            for name in (NAME, None):
                assert await _ask(port, other, name=name) == b"hello\n"
            with pytest.raises(ssl.SSLCertVerificationError):
                await _ask(port, ca)

    asyncio.run(scenario())


async def _is_let_in(port: int, ca: Path, own: tuple[Path, Path] | None) -> bool:
    """With TLS 1.3 a client learns only from its first read that its certificate was refused."""
    try:
        return await _ask(port, ca, own) == b"hello\n"
    except (ssl.SSLError, ConnectionError):
        return False


def test_http_with_client_certificates_takes_up_a_new_ca(
    tmp_path: Path, authority: trustme.CA, stranger: trustme.CA
) -> None:
    async def scenario() -> None:
        cert, key = _issue(tmp_path, authority)
        ca = _trusted(tmp_path, authority)
        client_ca = _trusted(tmp_path, authority, "clients")
        mine, theirs = _issue(tmp_path, authority, "mine"), _issue(tmp_path, stranger, "theirs")
        async with _serving_http(server_context(ServerTls(cert=cert, key=key, client_ca=client_ca))) as port:
            assert [await _is_let_in(port, ca, own) for own in (mine, theirs, None)] == [True, False, False]
            _trusted(tmp_path, stranger, "clients")
            assert [await _is_let_in(port, ca, own) for own in (mine, theirs, None)] == [False, True, False]

    asyncio.run(scenario())


def test_files_that_do_not_fit_are_left_aside(
    tmp_path: Path,
    authority: trustme.CA,
    serve_grpc: Any,  # noqa: ANN401
    caplog: pytest.LogCaptureFixture,
) -> None:
    cert, key = _issue(tmp_path, authority)
    client = TritonTls(ca=_trusted(tmp_path, authority), server_name=NAME)
    address = serve_grpc(server_credentials(ServerTls(cert=cert, key=key)))
    with caplog.at_level(logging.WARNING):
        key.write_bytes(authority.issue_cert(NAME).private_key_pem.bytes())
        assert _call(address, client) == b"hello"
        cert.write_text("half of it")
        assert _call(address, client) == b"hello"
    first, second = (record.getMessage() for record in caplog.records if "TLS goes on" in record.getMessage())
    assert first == f"TLS goes on with what it had: {key}: it is not the key of {cert}"
    assert f"{cert}: there are no certificates in PEM form in it" in second


@pytest.mark.parametrize("mutual", [False, True])
def test_channels_reach_a_triton_that_speaks_tls(
    mutual: bool, tmp_path: Path, authority: trustme.CA, start_triton: Callable[..., EmbeddedTriton]
) -> None:
    cert, key = _issue(tmp_path, authority, host="127.0.0.1")
    ca = _trusted(tmp_path, authority)
    (tmp_path / "models").mkdir()
    options = [f"--grpc-server-cert={cert}", f"--grpc-server-key={key}", f"--grpc-root-cert={ca}"]
    options += ["--model-control-mode=explicit", f"--grpc-use-ssl{'-mutual' if mutual else ''}=1"]
    triton = start_triton([tmp_path / "models"], options=options)
    own_cert, own_key = _issue(tmp_path, authority, "client")
    with_own = _call(triton.grpc_address, TritonTls(ca=ca, cert=own_cert, key=own_key))
    without = _call(triton.grpc_address, TritonTls(ca=ca))
    # `hello` is no message; a Triton that says so was reached.
    assert (with_own is grpc.StatusCode.UNAVAILABLE, without is grpc.StatusCode.UNAVAILABLE) == (False, mutual)
    triton.stop()


def test_words_for_files_that_cannot_be_used(tmp_path: Path, authority: trustme.CA) -> None:
    cert, key = _issue(tmp_path, authority)
    _, other_key = _issue(tmp_path, authority, "other")
    text, absent, encrypted = tmp_path / "text", tmp_path / "absent", tmp_path / "encrypted"
    text.write_text("no certificate")
    encrypted.write_bytes(_encrypted(key.read_bytes()))
    for tls, said in (
        ({"cert": cert, "key": other_key}, f"{other_key}: it is not the key of {cert}"),
        ({"cert": text, "key": key}, f"{text}: there are no certificates in PEM form in it"),
        ({"cert": cert, "key": text}, f"{text}: there is no private key in PEM form in it"),
        ({"cert": cert, "key": encrypted}, f"{encrypted}: it is encrypted; store it without a password"),
        ({"cert": absent, "key": key}, f"{absent}: No such file or directory"),
        ({"cert": cert, "key": absent}, f"{absent}: No such file or directory"),
        ({"cert": cert, "key": key, "client_ca": text}, f"{text}: there are no certificates in PEM form in it"),
    ):
        for make in (server_credentials, server_context):
            with pytest.raises(TlsError) as caught:
                make(ServerTls(**tls))
            assert str(caught.value).startswith(said)
    for client, said in (
        (TritonTls(ca=text), f"{text}: there are no certificates"),
        (TritonTls(cert=cert, key=other_key), f"{other_key}: it is not the key of {cert}"),
    ):
        with pytest.raises(TlsError) as caught:
            channel_credentials(client)
        assert str(caught.value).startswith(said)


def _encrypted(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
