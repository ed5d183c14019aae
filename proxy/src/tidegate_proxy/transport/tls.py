"""TLS contexts of the gRPC and HTTP servers, and of channels to Tritons. Errors name the file."""

import asyncio
import logging
import re
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.transport.file_watcher import WatchedFiles

log = logging.getLogger(__name__)
_OPENSSL_NAME: Final = re.compile(r"\[[^\]]*\] (.*?)(?: \(_ssl\.c:\d+\))?")


class TlsError(Exception):
    """Error: a certificate or key is invalid; the message names the file and the cause."""


def close_once(transport: asyncio.Transport) -> None:
    """Close a connection after pending writes, unless it is closing already.

    asyncio's TLS transport ignores abort() after a second close(), and waits half a minute for its peer.
    """
    if not transport.is_closing():
        transport.close()


def server_context(tls: ServerTls, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """Return the TLS context of a server in the event loop. `protocols`: for ALPN.

    Changed files apply to later connections. Raises TlsError.
    """
    files = _ServerFiles(tls, protocols)
    context = files.context

    def use_the_newest(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        files.renewed()
        connection.context = files.context

    # Called in every handshake, also where the client names no server.
    context.sni_callback = use_the_newest
    return context


def channel_context(tls: TritonTls, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """Return the TLS context of a connection to a Triton; `protocols`: for ALPN. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if protocols:
        context.set_alpn_protocols(protocols)
    if tls.ca is None:
        context.load_default_certs()
    else:
        _trust(context, tls.ca)
    if tls.cert is not None and tls.key is not None:
        _load_pair(context, tls.cert, tls.key)
    return context


class _ServerFiles:
    """A server's files, read again when they have changed; what cannot be used is left aside."""

    def __init__(self, tls: ServerTls, protocols: Sequence[str] = ()) -> None:
        self._tls = tls
        self._protocols = protocols
        self._watched = WatchedFiles((tls.cert, tls.key, tls.client_ca))
        self._lock = threading.Lock()
        self.context = _server_context(tls, protocols)
        """Made of the newest files that could be used."""

    def renewed(self) -> bool:
        """Whether there were newer files, and they can be used. Called before every handshake."""
        with self._lock:
            if not self._watched.changed():
                return False
            try:
                self.context = _server_context(self._tls, self._protocols)
            except TlsError as error:
                # Half-written, or key and certificate not replaced together: the next change will tell.
                log.warning("TLS certificate not reloaded, the former one stays", extra={"error": str(error)})
                return False
            log.info("TLS certificate reloaded", extra={"cert": str(self._tls.cert)})
            return True


def _server_context(tls: ServerTls, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if protocols:
        context.set_alpn_protocols(protocols)
    _load_pair(context, tls.cert, tls.key)
    if tls.client_ca is not None:
        _trust(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    def no_password() -> str:
        raise TlsError(f"{key}: it is encrypted; store it without a password, readable to Tidegate only")

    _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert)  # says whether there are certificates in it
    _read(key)
    try:
        context.load_cert_chain(cert, key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{key}: it is not the key of {cert}") from error
        raise TlsError(f"{key}: there is no private key in PEM form in it ({_why(error)})") from error


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    _read(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise TlsError(f"{ca}: there are no certificates in PEM form in it ({_why(error)})") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}") from error


def _why(error: ssl.SSLError) -> str:
    found = _OPENSSL_NAME.fullmatch(str(error.args[-1]))
    return found[1] if found else str(error.args[-1])
