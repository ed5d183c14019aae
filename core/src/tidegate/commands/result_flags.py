"""Options of commands that have results: JSON in place of tables, a file of JSON, a page."""

from pathlib import Path
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the results as JSON, and no table.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the results to this file, as JSON.")
]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report to this file.")]
