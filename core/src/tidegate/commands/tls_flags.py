"""TLS flags (`--tls-...`) of commands that connect to gRPC ports."""

from pathlib import Path
from typing import Annotated

import typer

TlsFlag = Annotated[bool, typer.Option("--tls", help="Connect to gRPC with TLS, and trust the CAs of this system.")]
TlsCaFlag = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="Connect to gRPC with TLS, and trust the CAs in this file (PEM)."),
]
TlsCertFlag = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="Certificate to present to the server (PEM), for mutual TLS."),
]
TlsKeyFlag = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of --tls-cert (PEM).")]
TlsServerNameFlag = Annotated[
    str | None,
    typer.Option(
        "--tls-server-name", metavar="NAME", help="Name in the server's certificate. [default: the host of its address]"
    ),
]


def tls_of(
    tls: bool, ca: Path | None, cert: Path | None, key: Path | None, server_name: str | None
) -> dict[str, Path | str] | None:
    """Return the TLS section that the flags describe (`tritons[].tls`), with absolute paths; None: no TLS.

    `tls`: whether TLS is used even without files. `ca`, `cert`, `key`: PEM files of the certificate authority, the
    client certificate and its key. `server_name`: host name expected in the server's certificate. None: not given.
    """
    files = {"ca": ca, "cert": cert, "key": key}
    found: dict[str, Path | str] = {name: path.absolute() for name, path in files.items() if path is not None}
    if server_name is not None:
        found["server_name"] = server_name
    return found if found or tls else None
