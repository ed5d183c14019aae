"""The flags `--triton` and `--tls-...` of the commands that ask Tritons, and what they say."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

TritonFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--triton",
        metavar="HOST:PORT[,http=HOST:PORT][,metrics=HOST:PORT]",
        help="gRPC address of a Triton; may be given several times. On port 8001 the others are 8000 and 8002.",
    ),
]
TlsFlag = Annotated[
    bool, typer.Option("--tls", help="Their gRPC ports speak TLS, with certificates that this system trusts.")
]
TlsCaFlag = Annotated[
    Path | None, typer.Option("--tls-ca", metavar="FILE", help="TLS, with the certificates to trust (PEM).")
]
TlsCertFlag = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert", metavar="FILE", help="TLS, with our own certificate (PEM), for Tritons that ask for one."
    ),
]
TlsKeyFlag = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key (PEM).")]
TlsServerNameFlag = Annotated[
    str | None,
    typer.Option(
        "--tls-server-name", metavar="NAME", help="The name in their certificates, if not that of the address."
    ),
]
_FLAGS: Final = {
    "tls": "--tls",
    "tls.ca": "--tls-ca",
    "tls.cert": "--tls-cert",
    "tls.key": "--tls-key",
    "tls.server_name": "--tls-server-name",
}


def tritons_of(texts: Sequence[str] | None, tls: Mapping[str, Path | str] | None = None) -> list[dict[str, Any]] | None:
    """The Tritons as a configuration has them; None where the flag was not given. `tls`: how all of them speak it.

    Raises typer.BadParameter where TLS is told of no Triton.
    """
    if tls is not None and not texts:
        words = "it is for Tritons given with --triton; a configuration has it in tritons[].tls"
        raise typer.BadParameter(words, param_hint="--tls")
    section = {} if tls is None else {"tls": dict(tls)}
    return [{**_triton(text), **section} for text in texts] if texts else None


def tls_of(
    tls: bool, ca: Path | None, cert: Path | None, key: Path | None, server_name: str | None
) -> dict[str, Path | str] | None:
    """The section `tls` of a Triton, its paths made independent of where its file lies; None: no TLS."""
    files = {"ca": ca, "cert": cert, "key": key}
    found: dict[str, Path | str] = {name: path.absolute() for name, path in files.items() if path is not None}
    if server_name is not None:
        found["server_name"] = server_name
    return found if found or tls else None


def flag_of(field: str) -> str:
    """The flag that says what a field of the configuration says, `tritons.0.tls.ca` say."""
    return _FLAGS.get(".".join(field.split(".")[2:]), "--triton")


def _triton(text: str) -> dict[str, Any]:
    address, *others = text.split(",")
    return {"grpc": address, **pairs(others, "--triton")}


def pairs(texts: Sequence[str] | None, flag: str) -> dict[str, str]:
    """The values of NAME=VALUE, by name. Raises typer.BadParameter for what is none."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=flag)
        found[name] = value
    return found
