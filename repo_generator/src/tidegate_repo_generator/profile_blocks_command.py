"""Command `tidegate profile-blocks`: a thin layer over `measure_blocks` and `import_profile`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate_repo_generator.model import GenerateError

if TYPE_CHECKING:
    from rich.console import Console

    from tidegate.schemas import BlockProfile
    from tidegate_repo_generator.splitting.manifest import Manifest


def profile_blocks(
    blocks: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Blocks of `tidegate split`, or their blocks.json.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="PROFILE.json", help="Profile to write, or to add to.", show_default=False
        ),
    ],
    rows: Annotated[str, typer.Option(metavar="B[,B...]", help="Batch sizes in rows.")] = "1,2,4,8",
    device_class: Annotated[str, typer.Option(help="Device class of the GPU or worker.")] = "default",
    share: Annotated[
        int,
        typer.Option(
            min=1, metavar="V", help="Shares that the device is divided into; one is measured while all are busy."
        ),
    ] = 1,
    provider: Annotated[
        str, typer.Option(help="Execution provider of onnxruntime that runs the blocks.")
    ] = "CPUExecutionProvider",
    repeats: Annotated[int, typer.Option(min=1, help="Runs per block and batch size; their median counts.")] = 20,
    tool: Annotated[
        str | None,
        typer.Option(
            "--import",
            metavar="TOOL",
            help="Read profiles of trtexec or onnxruntime, and measure nothing.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[BLOCK=]FILE",
            help="Profile of the whole model, or one for each block, with --import. Repeatable.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure the latency of each block of a split model.

    Measurements are added to PROFILE.json, so that one file has every device
    class, share and batch size; run this on each device class. Shares of a GPU
    need NVIDIA MPS; on the CPU they are shares of the cores.

    Examples, two device classes, then a profile that trtexec made of each block:

        tidegate profile-blocks blocks -o profile.json --device-class l4 --provider CUDAExecutionProvider

        tidegate profile-blocks blocks -o profile.json --device-class t4 --share 2 --provider CUDAExecutionProvider

        tidegate profile-blocks blocks -o profile.json --device-class p4 --rows 4 --import trtexec
        --file 00=00.json --file 01=01.json
    """
    from rich.console import Console  # noqa: PLC0415 - this and onnxruntime are slow to import

    from tidegate.schemas import DocumentError, write_document  # noqa: PLC0415
    from tidegate.terminal import console_for_tables  # noqa: PLC0415
    from tidegate_repo_generator.splitting.block_times import merge_into  # noqa: PLC0415
    from tidegate_repo_generator.splitting.imports import ProfilingTool, import_profile  # noqa: PLC0415
    from tidegate_repo_generator.splitting.manifest import read_manifest  # noqa: PLC0415

    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    try:
        sizes = _numbers(rows)
        folder, manifest = read_manifest(blocks)
        if tool is None:
            if file:
                raise GenerateError("--file needs --import TOOL, which says what wrote it")
            measured = _measured(folder, manifest, sizes, device_class, provider, share, repeats, errors)
        else:
            if tool not in list(ProfilingTool):
                raise GenerateError(f"--import {tool}: give one of {', '.join(ProfilingTool)}")
            if len(sizes) != 1:
                raise GenerateError(f"--rows {rows}: an imported profile is of one batch size; say which")
            measured = import_profile(
                folder, manifest, ProfilingTool(tool), file or [], device_class=device_class, share=share, rows=sizes[0]
            )
        profile = merge_into(output, measured)
        write_document(output, profile)
    except OSError as error:
        errors.print(f"error: {output} cannot be written: {error.strerror}")
        raise typer.Exit(1) from error
    except (GenerateError, DocumentError) as error:
        errors.print(f"error: {error}")
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(profile.model_dump_json(indent=2))
        return
    _print_table(measured, console_for_tables(markup=False))
    for line in _gaps(profile):
        errors.print(f"notice: {line}")


def _measured(
    folder: Path,
    manifest: "Manifest",
    rows: list[int],
    device_class: str,
    provider: str,
    share: int,
    repeats: int,
    errors: "Console",
) -> "BlockProfile":
    from rich.progress import Progress  # noqa: PLC0415

    from tidegate_repo_generator.splitting.block_times import measure_blocks  # noqa: PLC0415

    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(rows) * len(manifest.blocks))
        return measure_blocks(
            folder,
            manifest,
            rows,
            device_class=device_class,
            provider=provider,
            share=share,
            repeats=repeats,
            step=lambda: progress.update(task, advance=1),
        )


def _numbers(text: str) -> list[int]:
    try:
        rows = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise GenerateError(f"--rows {text}: give numbers of rows, e.g. 1,2,4,8") from error
    if rows[0] < 1:
        raise GenerateError(f"--rows {text}: a batch has at least 1 row")
    return rows


def _gaps(profile: "BlockProfile") -> list[str]:
    """Return measurements that one class or share has and another lacks: planners need the same of all."""
    shares = sorted({table.share for table in profile.latencies})
    rows = sorted({size for table in profile.latencies for size in table.rows})
    return [
        f"not measured yet: all blocks of device class '{device_class}', share {share}, batch {size}"
        for device_class in profile.kinds
        for share, size in profile.missing(device_class, shares, rows)
    ]


def _print_table(measured: "BlockProfile", console: "Console") -> None:
    from rich.table import Table  # noqa: PLC0415

    (latencies,) = measured.latencies
    title = (
        f"Model {measured.model}, device class {latencies.device_class}, share 1/{latencies.share}: median latency (us)"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("block")
    for size in latencies.rows:
        table.add_column(f"batch {size}", justify="right")
    for name, row in zip(measured.blocks, latencies.latency_us, strict=True):
        table.add_row(name, *(f"{value:.0f}" for value in row))
    console.print(table)
