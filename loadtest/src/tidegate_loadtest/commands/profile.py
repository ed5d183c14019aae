"""`tidegate profile`: measure a model, write the file that `tidegate serve --profiles` starts from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.documents import DEFAULT_KIND

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from tidegate.documents import ModelProfile
    from tidegate_loadtest.asked_shapes import AskedShape


def profile(
    model: Annotated[str, typer.Argument(help="The model to measure.")],
    triton: Annotated[str, typer.Option(help="gRPC address (HOST:PORT) of the Triton that serves it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile file; what else is in it is kept.")],
    rows: Annotated[
        str | None, typer.Option(help="Batch sizes, e.g. 1,2,4,8. Default: powers of two up to max_batch_size.")
    ] = None,
    samples: Annotated[int, typer.Option(min=3, help="Requests measured at each size.")] = 40,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME:3,48,320: an input's dimensions without rows, where the model leaves them open; "
            "NAME:3,48,320;NAME:7 for two inputs. Repeatable: each is measured."
        ),
    ] = None,
    shapes_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RECORDING",
            exists=True,
            dir_okay=False,
            help="Event log of `tidegate serve --record`: measure the shapes that its requests had.",
        ),
    ] = None,
    most_shapes: Annotated[int, typer.Option(min=1, help="Of --shapes-from, so many: the most frequent.")] = 8,
    kind: Annotated[
        str,
        typer.Option(
            help="The kind of its workers, as `tritons[].kind` of a configuration has it; `default`: of all others."
        ),
    ] = DEFAULT_KIND,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profiles as JSON, and no table.")] = False,
) -> None:
    """Measure a model's latency against the shape and the rows of a batch, through its Triton.

    Run it while nothing else loads the Triton. Examples:

    tidegate profile resnet50 --triton localhost:8001 -o profiles.json

    tidegate profile recognizer --triton localhost:8001 -o profiles.json --shape x:3,48,320 --shape x:3,48,640

    tidegate profile recognizer --triton localhost:8001 -o profiles.json --shapes-from events.jsonl
    """
    import asyncio

    from rich.console import Console
    from rich.markup import escape

    from tidegate.documents import ProfileFile, ProfileFileError, read_profiles, write_profile
    from tidegate_loadtest.asked_shapes import parse_asked
    from tidegate_loadtest.connection import Connection, LoadTestError
    from tidegate_loadtest.profile_table import print_profiles
    from tidegate_loadtest.profiler import measure_profiles, shapes_to_measure, sizes_to_measure

    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    asked, asked_sizes = parse_asked(shape or ()), _sizes(rows)
    if not kind:
        raise typer.BadParameter("give it a name, e.g. A100, or leave it out", param_hint="--kind")

    async def measure() -> list["ModelProfile"]:
        async with Connection(triton) as connection:
            sizes = await sizes_to_measure(connection, model, asked_sizes)
            shapes = [each.dimensions for each in (await shapes_to_measure(connection, model, asked)).values()]
            with _progress(errors) as bar:
                task = bar.add_task(model, total=len(shapes) * len(sizes) * samples)

                def advance(done: int, what: str) -> None:
                    bar.update(task, completed=done, description=f"{model}: {what}")

                return await measure_profiles(
                    connection, model, sizes, shapes, samples=samples, kind=kind, progress=advance
                )

    try:
        if output.exists():
            read_profiles(output)  # what is wrong with it should not have to wait for the measurements
        elif not output.parent.is_dir():
            raise LoadTestError(f"--output {output}: there is no folder {output.parent}")
        if shapes_from:
            asked += _recorded(errors, shapes_from, model, most_shapes)
        measured = asyncio.run(measure())
        for each in measured:
            write_profile(output, each)
    except (LoadTestError, ProfileFileError, OSError) as error:
        errors.print(f"[red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(ProfileFile(profiles=measured).model_dump_json())
    else:
        print_profiles(measured, {each.text: each.requests for each in asked})
        typer.echo(f"written to {output}")


def _progress(console: "Console") -> "Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def _recorded(console: "Console", path: Path, model: str, most: int) -> list["AskedShape"]:
    """The shapes of a recording; how much of it they are is said."""
    from rich.progress import open as open_with_progress

    from tidegate_loadtest.asked_shapes import recorded_shapes

    with open_with_progress(path, "rb", description=f"reading {path.name}", console=console, transient=True) as lines:
        found = recorded_shapes(lines, model, most)
    console.print(
        f"{path}: {len(found.shapes)} of {found.distinct} shapes, which {found.share:.1%} of {found.requests:,} "
        f"requests of {model} have",
        markup=False,
    )
    return list(found.shapes)


def _sizes(text: str | None) -> Sequence[int] | None:
    if text is None:
        return None
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of positive numbers", param_hint="--rows")
    return sizes
