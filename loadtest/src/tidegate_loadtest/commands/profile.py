"""`tidegate profile`: measure a model, write the file that `tidegate serve --profiles` starts from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.documents import ModelProfile


def profile(
    model: Annotated[str, typer.Argument(help="The model to measure.")],
    triton: Annotated[str, typer.Option(help="gRPC address (HOST:PORT) of the Triton that serves it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile file; other models in it are kept.")],
    rows: Annotated[
        str | None, typer.Option(help="Batch sizes, e.g. 1,2,4,8. Default: powers of two up to max_batch_size.")
    ] = None,
    samples: Annotated[int, typer.Option(min=3, help="Requests measured at each size.")] = 40,
    shape: Annotated[
        list[str] | None, typer.Option(help="NAME:3,48,320: an input's dimensions without rows. Repeatable.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(help="Kind of its workers, as `tritons[].kind` of a configuration has it."),
    ] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON, and no table.")] = False,
) -> None:
    """Measure a model's latency against the rows of a batch, through its Triton.

    Run it while nothing else loads the Triton. Example:

    tidegate profile resnet50 --triton localhost:8001 -o profiles.json
    """
    import asyncio

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tidegate.documents import ProfileFileError, write_profile
    from tidegate_loadtest.connection import Connection, LoadTestError
    from tidegate_loadtest.profiler import measure_profile, sizes_to_measure
    from tidegate_loadtest.shapes import parse_shapes

    errors = Console(stderr=True, soft_wrap=True, highlight=False)

    async def measure() -> "ModelProfile":
        async with Connection(triton) as connection:
            sizes = await sizes_to_measure(connection, model, _sizes(rows))
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=errors, transient=True) as bar:
                task = bar.add_task(model, total=len(sizes) * samples)

                def advance(at: int, done: int) -> None:
                    bar.update(task, completed=sizes.index(at) * samples + done, description=f"{model}: {at} rows")

                shapes = parse_shapes(shape or [])
                return await measure_profile(connection, model, sizes, samples=samples, shapes=shapes, progress=advance)

    try:
        measured = asyncio.run(measure()).model_copy(update={"kind": kind})
        write_profile(output, measured)
    except (LoadTestError, ProfileFileError, OSError) as error:
        errors.print(f"[red]error:[/] {error}")
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(measured.model_dump_json())
    else:
        _print(measured)
        typer.echo(f"written to {output}")


def _print(measured: "ModelProfile") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("rows", "median ms", "p95 ms", "line ms", "rows/s", title=f"{measured.model} through Triton")
    for column in table.columns:
        column.justify = "right"
    for point in measured.points:
        line_ms = measured.alpha_ms * point.rows + measured.beta_ms
        per_second = point.rows / point.median_ms * 1e3
        cells = (point.median_ms, point.p95_ms, line_ms)
        table.add_row(str(point.rows), *(f"{cell:.2f}" for cell in cells), f"{per_second:,.0f}")
    console = Console()
    console.print(table)
    console.print(f"l(b) = {measured.alpha_ms:.3f} ms * b + {measured.beta_ms:.3f} ms", highlight=False)


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of positive numbers", param_hint="--rows")
    return sizes
