"""Option for model repositories, for commands that read models' files."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

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
