"""Command `tidegate split`: a thin layer over `split_model`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate_repo_generator.model import GenerateError

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate_repo_generator.splitting.manifest import Manifest


def split(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="ONNX model.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write the blocks to.", show_default=False)
    ],
    blocks: Annotated[int, typer.Option(min=1, metavar="N", help="Blocks of about equal run time.")] = 10,
    slack: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="S",
            help="Fraction of a block's run time by which a cut may move to where fewer bytes cross.",
        ),
    ] = 0.05,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENSOR[,TENSOR...]",
            help="Cut after the nodes that make these tensors, instead of by run time. Repeatable.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON profile of onnxruntime, with graph optimizations disabled. [default: one is made]",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:SIZE,SIZE...",
            help="Dimensions of an input without rows, for run times and bytes. Repeatable.",
            show_default=False,
        ),
    ] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Send float32 tensors from block to block as float16.")] = False,
    batch_dim: Annotated[
        bool, typer.Option("--batch-dim", help="Make a fixed batch of 1 dynamic first, where the graph allows.")
    ] = False,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Real inputs (.npz, .npy) to verify with, rows first. Repeatable.", show_default=False
        ),
    ] = None,
    independent_rows: Annotated[
        bool,
        typer.Option("--independent-rows", help="Declare that no row influences another, where that cannot be proved."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing blocks in DIR.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Cut an ONNX model into blocks for pipeline planners.

    Blocks are runs of nodes of about equal run time, in the order of the file.
    DIR receives 00.onnx, 01.onnx, ..., the whole model, and blocks.json, which
    describes the tensors that cross each cut and their bytes per row. Only
    tensors with the batch first cross; weights and shape arithmetic are repeated
    where they are needed. Rows must be independent, because they meet other rows
    from block to block. The chained blocks are compared with the model before
    anything is written.

    Examples, a text recognizer for images of 48 x 320, then one cut by hand:

        tidegate split recognize.onnx -o blocks --shape x:3,48,320

        tidegate split recognize.onnx -o halves --at p2o.Add.125
    """
    from rich.console import Console  # noqa: PLC0415 - this, onnx and onnxruntime are slow to import
    from rich.progress import Progress  # noqa: PLC0415

    from tidegate.terminal import console_for_tables  # noqa: PLC0415
    from tidegate_repo_generator.splitting.inputs import parse_shapes  # noqa: PLC0415
    from tidegate_repo_generator.splitting.split import split_model  # noqa: PLC0415

    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    tensors = [name for names in at or [] for name in names.split(",") if name]
    count = len(tensors) + 1 if tensors else blocks
    try:
        with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
            task = progress.add_task("analysing", total=15 + (3 if fp16 else 2) * count)
            manifest = split_model(
                model,
                output,
                blocks=blocks,
                slack=slack,
                at=tensors,
                profile=profile,
                shapes=parse_shapes(shape or []),
                fp16=fp16,
                batch_dim=batch_dim,
                real=inputs or [],
                independent_rows=independent_rows,
                force=force,
                step=lambda what: progress.update(task, advance=1, description=what),
            )
    except (GenerateError, OSError) as error:
        errors.print(f"error: {error}")
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(manifest.model_dump_json(indent=2))
        return
    console = console_for_tables(markup=False)
    console.print(_as_table(manifest))
    console.print(_verdict(manifest))


def _verdict(manifest: "Manifest") -> str:
    found = manifest.verification
    text = f"Verified on {found.rows} random rows: largest difference {found.max_difference:.2g} of the largest output"
    if found.fp16_max_difference is not None:
        text += f", {found.fp16_max_difference:.2g} with float16 between the blocks"
    return text + "."


def _as_table(manifest: "Manifest") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"Model {manifest.model}: {len(manifest.blocks)} blocks", title_justify="left")
    for column in ("block", "nodes", "run time (us)", "weights (MiB)", "sends (bytes/row)", "as fp16"):
        table.add_column(column, justify="left" if column == "block" else "right")
    table.add_column("tensors that cross", overflow="fold")
    crossings = [*manifest.crossings, []]
    for block, crossing in zip(manifest.blocks, crossings, strict=True):
        table.add_row(
            block.name,
            str(len(block.nodes)),
            "-" if block.run_time_us is None else f"{block.run_time_us:.0f}",
            f"{block.weight_bytes / 2**20:.2f}",
            str(sum(tensor.bytes_per_row for tensor in crossing)) if crossing else "-",
            str(sum(tensor.fp16_bytes_per_row for tensor in crossing)) if crossing else "-",
            ", ".join(tensor.name for tensor in crossing),
        )
    return table
