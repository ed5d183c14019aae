"""TLS: real handshakes with what is made from the configuration, and words for files that cannot be used."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
import uvloop

from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.configuration.tritons import TritonAddress, TritonTls
from tidegate_proxy.transport.tls import (
    TlsError,
    channel_context,
    server_context,
)
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.embedded import EmbeddedTriton

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


async def test_http_over_tls_takes_up_new_files(tmp_path: Path, authority: trustme.CA, stranger: trustme.CA) -> None:
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


async def _is_let_in(port: int, ca: Path, own: tuple[Path, Path] | None) -> bool:
    """With TLS 1.3 a client learns only from its first read that its certificate was refused."""
    try:
        return await _ask(port, ca, own) == b"hello\n"
    except (ssl.SSLError, ConnectionError):
        return False


async def test_http_with_client_certificates_takes_up_a_new_ca(
    tmp_path: Path, authority: trustme.CA, stranger: trustme.CA
) -> None:
    cert, key = _issue(tmp_path, authority)
    ca = _trusted(tmp_path, authority)
    client_ca = _trusted(tmp_path, authority, "clients")
    mine, theirs = _issue(tmp_path, authority, "mine"), _issue(tmp_path, stranger, "theirs")
    async with _serving_http(server_context(ServerTls(cert=cert, key=key, client_ca=client_ca))) as port:
        assert [await _is_let_in(port, ca, own) for own in (mine, theirs, None)] == [True, False, False]
        _trusted(tmp_path, stranger, "clients")
        assert [await _is_let_in(port, ca, own) for own in (mine, theirs, None)] == [False, True, False]


def test_files_that_do_not_fit_are_left_aside(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = _issue(tmp_path, authority)
    ca = _trusted(tmp_path, authority)

    async def scenario() -> None:
        async with _serving_http(server_context(ServerTls(cert=cert, key=key))) as port:
            key.write_bytes(authority.issue_cert(NAME).private_key_pem.bytes())
            assert await _ask(port, ca) == b"hello\n"
            cert.write_text("half of it")
            assert await _ask(port, ca) == b"hello\n"

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    first, second = (line for line in caplog.text.splitlines() if "TLS certificate not reloaded" in line)
    assert first.endswith(f"the former one stays: {key}: it is not the key of {cert}")
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

    async def reaches(tls: TritonTls) -> bool:
        backend = Backend(TritonAddress(grpc=triton.grpc_address, tls=tls))
        try:
            return await backend.is_live()
        finally:
            await backend.close()

    assert uvloop.run(reaches(TritonTls(ca=ca, cert=own_cert, key=own_key)))
    assert uvloop.run(reaches(TritonTls(ca=ca))) is not mutual
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
        with pytest.raises(TlsError) as caught:
            server_context(ServerTls(**tls))
        assert str(caught.value).startswith(said)
    for client, said in (
        (TritonTls(ca=text), f"{text}: there are no certificates"),
        (TritonTls(cert=cert, key=other_key), f"{other_key}: it is not the key of {cert}"),
    ):
        with pytest.raises(TlsError) as caught:
            channel_context(client)
        assert str(caught.value).startswith(said)


def _encrypted(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
