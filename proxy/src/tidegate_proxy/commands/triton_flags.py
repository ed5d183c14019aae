"""Option `--triton` of the commands that query Tritons; `tidegate.commands.tls_flags` has their TLS options."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

TritonFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--triton",
        metavar="HOST:PORT[,http=HOST:PORT][,metrics=HOST:PORT]",
        help="gRPC address of a Triton; at port 8001 its HTTP is at 8000, its metrics at 8002. Repeatable.",
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
    """Return the Tritons in the form of the configuration, or None without the flag.

    `tls`: TLS settings for all of them.

    Raises typer.BadParameter for TLS settings without a Triton.
    """
    if tls is not None and not texts:
        words = "it is for Tritons given with --triton; a configuration has it in tritons[].tls"
        raise typer.BadParameter(words, param_hint="--tls")
    section = {} if tls is None else {"tls": dict(tls)}
    return [{**_triton(text), **section} for text in texts] if texts else None


def flag_of(field: str) -> str:
    """Return the command-line flag for a field of the configuration, such as `tritons.0.tls.ca`."""
    return _FLAGS.get(".".join(field.split(".")[2:]), "--triton")


def _triton(text: str) -> dict[str, Any]:
    address, *others = text.split(",")
    return {"grpc": address, **pairs(others, "--triton")}


def pairs(texts: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Parse NAME=VALUE texts; return the values by name. Raises typer.BadParameter for anything else."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=flag)
        found[name] = value
    return found
