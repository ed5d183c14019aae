"""Command `tidegate profile-shares`: measures models on shares of a GPU, alone and together, for `fit-interference`."""

from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from tidegate.commands.flags import TlsCaFlag, TlsCertFlag, TlsFlag, TlsKeyFlag, TlsServerNameFlag, tls_of
from tidegate_loadtest.commands.sending_flags import positive_numbers


def profile_shares(
    models: Annotated[list[str], typer.Argument(help="Models to run; every Triton has all of them.")],
    triton: Annotated[
        list[str],
        typer.Option(
            metavar="PERCENT=HOST:PORT",
            help="gRPC address of a Triton with this share of the GPU, e.g. 40=localhost:8001. Repeatable.",
        ),
    ],
    gpu: Annotated[str, typer.Option(help="GPU that the models run on, as a device's product is written: V100.")],
    solo: Annotated[Path, typer.Option(help="Write the standalone runs to this new file (CSV).")],
    co_runs: Annotated[Path, typer.Option(help="Write the co-located runs to this new file (CSV).")],
    rows: Annotated[
        str | None,
        typer.Option(help="Batch sizes in rows, e.g. 1,8,16,32. [default: powers of two up to max_batch_size]"),
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="Co-located runs for each model.")] = 12,
    group_size: Annotated[int, typer.Option(min=2, help="Models in each co-located run.")] = 2,
    window_s: Annotated[float, typer.Option(min=0.05, help="Seconds that each run is measured.")] = 3.0,
    warmup_s: Annotated[float, typer.Option(min=0.0, help="Seconds of load before each measurement.")] = 0.5,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Dimensions of an input without rows, NAME:3,48,320, where models leave them open. Repeatable."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed that draws the models and batches of the co-located runs.")
    ] = 0,
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
    tls_server_name: TlsServerNameFlag = None,
) -> None:
    """Measure models on GPU shares, alone and co-located.

    Runs models on shares of a GPU, alone and together, and writes the latency of their batches.

    A share belongs to a Triton (MPS): start one for each share, all on one GPU and with the same models, one
    instance each and no dynamic batching; start two with the same share to measure models with equal shares. The
    GPU must have no other load. Example:

    tidegate profile-shares resnet50 vgg19 --gpu V100 --triton 20=localhost:8001 --triton 40=localhost:8011 --triton
    60=localhost:8021 --triton 80=localhost:8031 --solo solo.csv --co-runs co_runs.csv

    tidegate fit-interference --gpu V100 --solo solo.csv --co-runs co_runs.csv -o v100.json
    """
    import asyncio
    from contextlib import AsyncExitStack

    from rich.console import Console

    from tidegate.commands.common import describe_error
    from tidegate.schemas import Tenant
    from tidegate_loadtest.connection import Connection, LoadTestError
    from tidegate_loadtest.interference.measure import SharedGpu, check_alone
    from tidegate_loadtest.interference.measure import groups as planned_groups
    from tidegate_loadtest.interference.runs import CoRun, SoloRun, write_co_runs, write_solo
    from tidegate_loadtest.profiler import default_sizes
    from tidegate_loadtest.progress_bar import progress_bar
    from tidegate_loadtest.requested_shapes import parse_asked

    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    shares = [_share(text) for text in triton]
    percents = [percent for percent, _ in shares]
    asked = positive_numbers(rows, "--rows")
    secured = tls_of(tls, tls_ca, tls_cert, tls_key, tls_server_name)
    shapes = {name: size for each in parse_asked(shape or ()) for name, size in each.dimensions.items()}

    async def measure() -> tuple[list[SoloRun], list[CoRun]]:
        async with AsyncExitStack() as connected:
            tritons = [await connected.enter_async_context(Connection(address, tls=secured)) for _, address in shares]
            sizes = {}
            for model in models:
                largest = min([await check_alone(each, model) for each in tritons])
                sizes[model] = asked or default_sizes(largest)
                if max(sizes[model]) > largest:
                    raise LoadTestError(f"model {model!r} takes at most {largest} rows, not {max(sizes[model])}")
            once = {percent: number for number, percent in enumerate(percents)}
            alone = [
                (Tenant(model, rows, percent), number)
                for model in models
                for rows in sizes[model]
                for percent, number in sorted(once.items())
            ]
            together = planned_groups(sizes, percents, number=groups, size=group_size, seed=seed)
            shared = SharedGpu(tritons, shapes, warmup_s=warmup_s, window_s=window_s)
            with progress_bar(errors, len(alone) + len(together)) as show:
                done = count()

                def advance(what: str) -> None:
                    show(next(done), what)

                return await shared.alone(alone, advance), await shared.beside(together, advance)

    try:
        for path in (solo, co_runs):
            if path.exists() or not path.parent.is_dir():
                why = "it exists already: move it away" if path.exists() else f"there is no folder {path.parent}"
                raise LoadTestError(f"{path}: {why}")
        measured_alone, measured_together = asyncio.run(measure())
        write_solo(solo, gpu, measured_alone)
        write_co_runs(co_runs, gpu, measured_together)
    except (LoadTestError, OSError) as error:
        errors.print(f"error: {describe_error(error)}", style="red")
        raise typer.Exit(1) from error
    typer.echo(f"{len(measured_alone)} runs alone: {solo}\n{len(measured_together)} beside each other: {co_runs}")


def _share(text: str) -> tuple[float, str]:
    percent, _, address = text.partition("=")
    try:
        share = float(percent)
    except ValueError:
        share = 0.0
    if not 0 < share <= 100 or not address:
        raise typer.BadParameter(f"{text!r} is no PERCENT=HOST:PORT, such as 40=localhost:8001", param_hint="--triton")
    return share, address
