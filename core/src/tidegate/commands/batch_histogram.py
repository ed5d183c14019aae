"""`tidegate batch-histogram`: how many requests have how many rows, for planners of slices."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import check_output_file

if TYPE_CHECKING:
    from tidegate.schemas import RequestSizes


_NO_PAGE = "`curl` /models from the metrics port of a Tidegate: it is no answer of /models"


def batch_histogram(
    source: Annotated[
        Path,
        typer.Argument(
            help="Scenario, event log (`tidegate serve --event-log`), or the answer of /models at a metrics port."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the sizes to this file.", callback=check_output_file)
    ],
) -> None:
    """Count the rows per request of each model.

    Examples:

    tidegate batch-histogram scenario.yaml -o sizes.json

    tidegate batch-histogram run.jsonl -o sizes.json

    curl -s localhost:8102/models > models.json && tidegate batch-histogram models.json -o sizes.json
    """
    from rich.table import Table

    from tidegate.commands.common import console_for_tables, errors_explained, errors_in_a_line
    from tidegate.schemas import write_document

    with errors_explained():
        with errors_in_a_line(ValueError, source=source):
            found = _sizes_in(source)
        write_document(output, found)
    table = Table("model", "requests", "mean rows", "largest", title=str(source))
    for name, counts in found.models.items():
        total = sum(counts.values())
        mean = sum(rows * count for rows, count in counts.items()) / total
        table.add_row(name, "-" if total <= 1 else f"{total:,.0f}", f"{mean:.2f}", str(max(counts)))
    console = console_for_tables()
    console.print(table)
    console.print(f"sizes: {output}", markup=False, style="dim")


def _sizes_in(source: Path) -> "RequestSizes":
    """Return the sizes in a file. Raises ValueError, ScenarioError and OSError."""
    import json

    with source.open("rb") as lines:
        start = lines.readline()
    if start.lstrip().startswith(b"["):
        try:
            page = json.loads(source.read_bytes())
        except ValueError as error:
            raise ValueError(f"{_NO_PAGE}: {error}") from error
        return _of_models_page(page)
    if b'"setup"' in start:
        return _of_log(source)
    from tidegate.schemas import RequestSizes
    from tidegate.workload import read_scenario, sizes_of

    return RequestSizes(models=sizes_of(read_scenario(source)))


def _of_models_page(page: object) -> "RequestSizes":
    from pydantic import ValidationError

    from tidegate.schemas import RequestSizes, field_errors

    if not isinstance(page, list) or not all(
        isinstance(model, dict) and {"name", "rows"} <= model.keys() for model in page
    ):
        raise ValueError(_NO_PAGE)
    models = {model["name"]: model["rows"] for model in page if model["rows"]}
    if not models:
        raise ValueError("no request of any model that is scheduled was answered yet: ask again once there was load")
    try:
        return RequestSizes.model_validate({"models": models})
    except ValidationError as error:
        raise ValueError(f"{_NO_PAGE}: {field_errors(error, RequestSizes)[0]}") from error


def _of_log(source: Path) -> "RequestSizes":
    """Every request that arrived while it was recorded."""
    from collections import Counter, defaultdict

    from tidegate.api import RequestArrived
    from tidegate.observation import read_log
    from tidegate.schemas import RequestSizes

    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    with source.open("rb") as lines:
        for entry in read_log(lines)[1]:
            if isinstance(entry.event, RequestArrived):
                counts[entry.event.request.model][entry.event.request.rows] += 1
    if not counts:
        raise ValueError("nothing arrived while it was recorded: record under load")
    return RequestSizes(models={name: dict(sorted(mine.items())) for name, mine in counts.items()})
