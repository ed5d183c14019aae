"""Options of commands that have results: JSON in place of tables, a file of JSON, a page."""

from pathlib import Path
from typing import Annotated

import typer


def check_output_file(path: Path | None) -> Path | None:
    """Return the path of a file to write; before the work, not after it, raises BadParameter if it cannot be one."""
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a directory; name a file in it")
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}; make it first")
    return path


JsonFlag = Annotated[bool, typer.Option("--json", help="Print the results as JSON, and no table.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the results to this file, as JSON.", callback=check_output_file
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a report to this file.", callback=check_output_file),
]
