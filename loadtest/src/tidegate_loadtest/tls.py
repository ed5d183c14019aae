"""TLS for connections to the gRPC port of a server."""

import ssl
from collections.abc import Mapping
from pathlib import Path

import grpc


class TlsFileError(Exception):
    """Error: a certificate or key is invalid; the message names the file."""


def credentials_of(tls: Mapping[str, Path | str]) -> grpc.ChannelCredentials:
    """Return the credentials of a channel, from the files `ca`, `cert` and `key`; without `ca`, trust the system's CAs.

    Raises TlsFileError.
    """
    ca, cert, key = (Path(tls[name]) if name in tls else None for name in ("ca", "cert", "key"))
    if (cert is None) != (key is None):
        raise TlsFileError("--tls-cert and --tls-key go together: give both or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    texts = [None if path is None else _read(path) for path in (ca, key, cert)]
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise TlsFileError(f"{ca}: there are no certificates in PEM form in it") from error
    try:
        if cert is not None:
            context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise TlsFileError(f"{cert} and {key} are no certificate and its key in PEM form: {error.reason}") from error
    return grpc.ssl_channel_credentials(*texts)


def options_of(tls: Mapping[str, Path | str]) -> list[tuple[str, str]]:
    """Return the options of that channel: the name in the server's certificate, if it differs from the address."""
    return [("grpc.ssl_target_name_override", str(tls["server_name"]))] if "server_name" in tls else []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFileError(f"{path}: {error.strerror}") from error
