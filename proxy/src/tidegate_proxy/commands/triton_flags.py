"""The flag `--triton` of the commands that ask Tritons, and what it says."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

TritonFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--triton",
        metavar="HOST:PORT[,http=HOST:PORT][,metrics=HOST:PORT]",
        help="gRPC address of a Triton; may be given several times. On port 8001 the others are 8000 and 8002.",
    ),
]


def tritons_of(texts: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """The Tritons as a configuration has them; None where the flag was not given."""
    return [_triton(text) for text in texts] if texts else None


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
