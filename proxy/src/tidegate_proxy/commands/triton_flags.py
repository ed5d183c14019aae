"""Options for Tritons and model repositories; `tidegate.commands.flags` has the TLS options of connections."""

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
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
_ADDRESS: Final = re.compile(r"[^/]+:\d+")
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


def check_is_file(config: Path | None) -> Path | None:
    """Return the path of a configuration. Raises typer.BadParameter for the address of a Triton."""
    if config is not None and _ADDRESS.fullmatch(str(config)) and not config.exists():
        raise typer.BadParameter(f"{config} is an address, not a file: give --triton {config}")
    return config


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


RepositoryFlags = Annotated[
    list[Path] | None,
    typer.Option(
        "--repository",
        metavar="DIR",
        help="Model repository of the Tritons; runs its ONNX models to see whether their rows are "
        "independent, and reads which models its BLS models call. Repeatable.",
        show_default=False,
    ),
]


def repositories_of(flags: list[Path] | None) -> list[Path]:
    """Return the folders. Raises typer.BadParameter if one does not exist, or if no installed package can read them."""
    for folder in flags or []:
        if not folder.is_dir():
            raise typer.BadParameter(f"{folder} is no folder", param_hint="--repository")
    if flags and find_spec("tidegate_repo_generator") is None:
        raise typer.BadParameter(
            "pip install tidegate-repo-generator, which looks into models", param_hint="--repository"
        )
    return flags or []
