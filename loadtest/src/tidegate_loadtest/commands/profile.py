"""Command `tidegate profile`: measures models and writes the file for `tidegate serve --profiles`."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import (
    TlsCaFlag,
    TlsCertFlag,
    TlsFlag,
    TlsKeyFlag,
    TlsServerNameFlag,
    check_output_file,
    tls_of,
)
from tidegate.schemas import DEFAULT_DEVICE_CLASS
from tidegate_loadtest.commands.sending_flags import positive_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console

    from tidegate.schemas import ModelProfile
    from tidegate_loadtest.profiling_run import ModelProfiling, ProfilingRun
    from tidegate_loadtest.requested_shapes import RequestedShape


def profile(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Models to measure. [default: all that Tidegate could schedule]",
            show_default=False,
        ),
    ] = None,
    *,
    triton: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT[,http=HOST:PORT][,metrics=HOST:PORT]",
            help="gRPC address of the Triton that serves them; its other addresses are not used.",
        ),
    ],
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
    tls_server_name: TlsServerNameFlag = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Write the profiles to this file; profiles of other models in it stay.",
            callback=check_output_file,
        ),
    ],
    rows: Annotated[
        str | None,
        typer.Option(help="Batch sizes in rows, e.g. 1,2,4,8. [default: powers of two up to max_batch_size]"),
    ] = None,
    samples: Annotated[int, typer.Option(min=3, help="Requests measured at each size.")] = 40,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Dimensions of an input without rows, NAME:3,48,320, where the model leaves them open; "
            "NAME:3,48,320;NAME:7 for two inputs. Repeatable: each is measured."
        ),
    ] = None,
    shapes_from: Annotated[
        Path | None,
        typer.Option(
            metavar="EVENT_LOG",
            exists=True,
            dir_okay=False,
            help="Event log (`tidegate serve --event-log`) whose shapes are measured.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=FOLDER",
            help="Real inputs: pictures or .npy/.npz files of one row each, sent in place of random tensors; their "
            "shapes are measured. Repeatable.",
        ),
    ] = None,
    max_shapes: Annotated[
        int, typer.Option(min=1, help="Shapes of --shapes-from and --inputs to measure, the most frequent first.")
    ] = 8,
    device_class: Annotated[
        str,
        typer.Option(help="Device class of the workers, as `tritons[].device_class` of a configuration has it."),
    ] = DEFAULT_DEVICE_CLASS,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run: measurements in the file stay.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profiles as JSON, and no table.")] = False,
) -> None:
    """Measure the latency of models by batch size and shape.

    Sends requests of each shape and batch size through the models' Triton. Run it while the Triton has no other load.
    Each model is written to the file as soon as it is measured, with the hardware of this machine if the Triton runs on
    it. Examples:

    tidegate profile --triton localhost:8001 -o profiles.json

    tidegate profile recognizer --triton localhost:8001 -o profiles.json --shape x:3,48,320 --shape x:3,48,640

    tidegate profile recognizer --triton localhost:8001 -o profiles.json --shapes-from events.jsonl

    tidegate profile ner --triton localhost:8001 -o profiles.json --inputs ner=sentences
    """
    import asyncio

    from rich.console import Console

    from tidegate.schemas import ProfileFileError, hardware_here, read_profiles
    from tidegate_loadtest.connection import Connection, LoadTestError
    from tidegate_loadtest.input_files import parse_inputs
    from tidegate_loadtest.profiling_run import (
        InputFolders,
        ProfilingRun,
        carry_out,
        is_here,
        plan_campaign,
        skip_known,
    )
    from tidegate_loadtest.requested_shapes import parse_asked

    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    names = list(dict.fromkeys(models or ()))
    asked, asked_sizes = parse_asked(shape or ()), positive_numbers(rows, "--rows")
    recorded: dict[str, Sequence[RequestedShape]] = {}
    if not device_class:
        raise typer.BadParameter("give it a name, e.g. A100, or leave it out", param_hint="--device-class")
    if asked and len(names) != 1:
        raise typer.BadParameter("is for one model: name it, or use --shapes-from for several", param_hint="--shape")
    folders = parse_inputs(inputs or ())
    if strange := [name for name in folders if names and name not in names]:
        raise typer.BadParameter(f"{strange[0]!r} is not among the models to measure", param_hint="--inputs")
    address = _grpc_address(triton)
    hardware = hardware_here() if is_here(address) else None
    campaign = ProfilingRun()
    secured = tls_of(tls, tls_ca, tls_cert, tls_key, tls_server_name)

    def shapes_of(model: str, is_open: bool) -> list["RequestedShape"]:
        if shapes_from is None or not (is_open or len(names) == 1):
            return asked
        recorded[model] = _recorded(errors, shapes_from, model, max_shapes)
        return [*asked, *recorded[model]]

    async def measure() -> None:
        async with Connection(address, tls=secured) as connection:
            await plan_campaign(campaign, connection, names, shapes_of, asked_sizes, InputFolders(folders, max_shapes))
            if resume and output.exists():
                skip_known(campaign, read_profiles(output).profiles, device_class, samples, hardware)
            with _shown(errors, campaign, samples, output) as (keep, advance):
                await carry_out(
                    connection,
                    campaign,
                    samples=samples,
                    device_class=device_class,
                    hardware=hardware,
                    keep=keep,
                    progress=advance,
                )

    status, stopped = 0, ""
    try:
        if output.exists():
            read_profiles(output)  # what is wrong with it should not have to wait for the measurements
        elif not output.parent.is_dir():
            raise LoadTestError(f"--output {output}: there is no folder {output.parent}")
        asyncio.run(measure())
    except KeyboardInterrupt:
        status, stopped = 130, "interrupted"
    except (LoadTestError, ProfileFileError, OSError) as error:
        status, stopped = 1, str(error)
    _print_measured(campaign, output, asked, recorded, as_json=as_json)
    _tell(errors, campaign, stopped, output)
    if status or campaign.failed:
        raise typer.Exit(status or 1)


@contextmanager
def _shown(
    errors: "Console", campaign: "ProfilingRun", samples: int, output: Path
) -> (
    "Iterator[tuple[Callable[[ModelProfiling, list[ModelProfile]], None], Callable[[ModelProfiling, int, str], None]]]"
):
    """Gives what keeps the profiles of a model, and what shows how far the campaign is: a bar, or a line each."""
    from tidegate.schemas import write_profile
    from tidegate_loadtest.progress_bar import progress_bar

    count = len(campaign.jobs)
    begins, total = {}, 0
    for job in campaign.jobs:
        begins[job.model] = total
        total += job.requests(samples)
    with progress_bar(errors, total) as show:

        def keep(job: "ModelProfiling", measured: "list[ModelProfile]") -> None:
            for each in measured:
                write_profile(output, each)
            if count > 1 and not errors.is_terminal:
                errors.print(f"{job.model}: measured, {campaign.jobs.index(job) + 1} of {count}", markup=False)

        def advance(job: "ModelProfiling", done: int, what: str) -> None:
            of_all = f"{campaign.jobs.index(job) + 1}/{count} " if count > 1 else ""
            show(begins[job.model] + done, f"{of_all}{job.model}: {what}")

        yield keep, advance


def _print_measured(
    campaign: "ProfilingRun",
    output: Path,
    asked: "Sequence[RequestedShape]",
    recorded: "Mapping[str, Sequence[RequestedShape]]",
    *,
    as_json: bool,
) -> None:
    """`recorded`: the shapes of recorded requests, by model."""
    from tidegate.schemas import ProfileFile
    from tidegate_loadtest.profile_table import print_profiles

    if not campaign.measured:
        return
    if as_json:
        typer.echo(ProfileFile(profiles=campaign.measured).model_dump_json())
        return
    for model in dict.fromkeys(profile.model for profile in campaign.measured):
        requests = {each.text: each.requests for each in [*asked, *recorded.get(model, ())]}
        print_profiles([profile for profile in campaign.measured if profile.model == model], requests)
    if hardware := campaign.measured[0].hardware:
        typer.echo(f"on {hardware}")
    typer.echo(f"written to {output}")


def _tell(errors: "Console", campaign: "ProfilingRun", stopped: str, output: Path) -> None:
    """Print what was not measured, and why, one line each. `stopped`: why the run ended early; empty: it did not."""
    from rich.markup import escape

    from tidegate_loadtest.profiling_run import why_gpus_are_unknown

    gpu_models = sorted({job.model for job in campaign.jobs if job.on_gpu})
    measured_here = {profile.model for profile in campaign.measured if profile.hardware is not None}
    if unknown := why_gpus_are_unknown([model for model in gpu_models if model in measured_here]):
        errors.print(f"[yellow]warning:[/] {escape(unknown)}")
    if campaign.known:
        errors.print(f"measured before: {', '.join(campaign.known)}", markup=False)
    for model, why in campaign.left_out.items():
        errors.print(f"left out: {model}: {why}", markup=False)
    for model, why in campaign.failed.items():
        errors.print(f"[red]error:[/] {escape(model)}: {escape(why)}")
    if stopped:
        done = len({profile.model for profile in campaign.measured})
        how = f"; {done} of {len(campaign.jobs)} models are in {output}, and --resume goes on from there"
        errors.print(f"[red]error:[/] {escape(stopped)}{escape(how) if campaign.jobs else ''}")


def _recorded(console: "Console", path: Path, model: str, most: int) -> list["RequestedShape"]:
    """The shapes of a recording; how much of it they are is said."""
    from rich.progress import open as open_with_progress

    from tidegate_loadtest.requested_shapes import recorded_shapes

    with open_with_progress(path, "rb", description=f"reading {path.name}", console=console, transient=True) as lines:
        found = recorded_shapes(lines, model, most)
    console.print(
        f"{path}: {len(found.shapes)} of {found.distinct} shapes, which {found.share:.1%} of {found.requests:,} "
        f"requests of {model} have",
        markup=False,
    )
    return list(found.shapes)


def _grpc_address(text: str) -> str:
    """Return the gRPC address of `--triton`. Raises typer.BadParameter for more than the other commands take."""
    address, *others = text.split(",")
    if unknown := [other for other in others if other.partition("=")[0] not in ("http", "metrics")]:
        raise typer.BadParameter(f"{unknown[0]!r} is not http=HOST:PORT or metrics=HOST:PORT", param_hint="--triton")
    return address
