"""Command `tidegate mig`: MIG instances of this machine and of a layout."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tidegate.schemas import Layout
    from tidegate_proxy.tritons.mig.changes import MigChange
    from tidegate_proxy.tritons.mig.interface import MigGpu
    from tidegate_proxy.tritons.mig.nvml import NvmlMig


class MigAction(StrEnum):
    """Action that `tidegate mig` carries out."""

    SHOW = "show"
    PLAN = "plan"
    DIFF = "diff"
    APPLY = "apply"
    UUID = "uuid"
    ENV = "env"


def mig(
    action: Annotated[MigAction, typer.Argument(show_default=False, help="Action: see below.")],
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LAYOUT|DIR]",
            show_default=False,
            help="Layout, or a folder that `tidegate generate LAYOUT` wrote.",
        ),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Argument(metavar="[WORKER]", show_default=False, help="Worker whose device is printed, for uuid."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Node of the layout that this machine is. [default: the one of its name, or the only one]",
        ),
    ] = None,
    unused: Annotated[
        bool,
        typer.Option("--unused", help="Keep instances that are in use, and change only the others (diff, apply)."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Make the changes (apply).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (show, plan, diff).")] = False,
) -> None:
    """Show, compare and apply the MIG instances of a layout.

    show: print the GPUs of this machine and their MIG instances, from NVML.

    plan LAYOUT: print the instances that a layout needs on each GPU.

    diff LAYOUT: print the changes needed on this machine, or why they are impossible.

    apply LAYOUT: the same; with --yes make the changes, all of them or none.

    uuid DIR WORKER: print the UUID of a worker's device, for its launch file.

    env DIR: print the UUIDs of all MIG instances of this machine, for Docker Compose.

    The MIG mode itself is never changed: that takes a reset of the GPU
    (`nvidia-smi -mig 1`). Example:

        tidegate mig diff deployment

        sudo tidegate mig apply deployment --yes
    """
    from rich.console import Console

    from tidegate.schemas import DocumentError
    from tidegate.terminal import console_for_tables
    from tidegate_proxy.tritons.mig.interface import MigError

    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    console = console_for_tables(markup=False)
    if source is None and action is not MigAction.SHOW:
        raise typer.BadParameter(f"{action} needs a layout, or the folder of a deployment", param_hint="LAYOUT")
    if (worker is None) == (action is MigAction.UUID):
        words = "uuid needs one: DIR WORKER" if worker is None else f"only uuid takes one, {action} does not"
        raise typer.BadParameter(words, param_hint="WORKER")
    if unused and action not in (MigAction.DIFF, MigAction.APPLY):
        raise typer.BadParameter("is for diff and apply", param_hint="--unused")
    if yes and action is not MigAction.APPLY:
        raise typer.BadParameter("is for apply", param_hint="--yes")
    try:
        _act(console, action, source, worker, node, unused=unused, yes=yes, as_json=as_json)
    except MigError as error:
        for line in str(error).splitlines():
            errors.print(f"error: {line}")
        raise typer.Exit(1) from error
    except DocumentError as error:
        errors.print(f"error: {error}")
        raise typer.Exit(1) from error


def _act(
    console: "Console",
    action: MigAction,
    source: Path | None,
    worker: str | None,
    node: str | None,
    *,
    unused: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from tidegate_proxy.tritons.mig.changes import changes, cuts_of, node_of, read_wish
    from tidegate_proxy.tritons.mig.instance_lookup import uuid_of
    from tidegate_proxy.tritons.mig.nvml import NvmlMig

    if source is None:
        _show(console, NvmlMig().gpus(), as_json=as_json)
        return
    layout = read_wish(source)
    if action is MigAction.PLAN:
        _plan(console, layout, node, as_json=as_json)
        return
    there = NvmlMig()
    match action:
        case MigAction.UUID:
            console.print(uuid_of(layout, str(worker), node, there.gpus()))
        case MigAction.ENV:
            _env(console, source, layout, node_of(layout, node), there.gpus())
        case MigAction.SHOW:
            _show(console, there.gpus(), as_json=as_json)
        case _:
            found = changes(there.gpus(), cuts_of(layout, node_of(layout, node)), unused_only=unused)
            _tell(console, found, as_json=as_json)
            if action is MigAction.APPLY and any(change.go or change.come for change in found):
                _apply(console, there, found, yes=yes)


def _apply(console: "Console", there: "NvmlMig", found: "Sequence[MigChange]", *, yes: bool) -> None:
    from tidegate_proxy.tritons.mig.changes import apply_changes

    if not yes:
        console.print("Nothing is changed: do it with --yes.")
        raise typer.Exit(1)
    apply_changes(there, found, console.print)


def _show(console: "Console", gpus: "Sequence[MigGpu]", *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_gpu(gpu) for gpu in gpus], indent=2))
        return
    from rich.table import Table

    table = Table("GPU", "product", "MIG", "instance", "UUID", "processes")
    for gpu in gpus:
        first = (str(gpu.number), gpu.device.product, gpu.mode.value)
        if not gpu.instances:
            table.add_row(*first, "", str(gpu.device.id), "")
        for number, instance in enumerate(gpu.instances):
            pids = ", ".join(map(str, instance.processes))
            table.add_row(*(("", "", "") if number else first), str(instance), instance.uuid or "", pids)
    console.print(table)


def _gpu(gpu: "MigGpu") -> dict[str, Any]:
    instances = [
        {"profile": each.profile, "start": each.start, "uuid": each.uuid, "processes": each.processes}
        for each in gpu.instances
    ]
    profiles = {each.name: each.starts for each in gpu.geometry.profiles} if gpu.geometry else None
    return {
        "number": gpu.number,
        "uuid": gpu.device.id,
        "product": gpu.device.product,
        "memory_mib": gpu.device.memory_mib,
        "mig": gpu.mode,
        "instances": instances,
        "profiles": profiles,
    }


def _plan(console: "Console", layout: "Layout", node: str | None, *, as_json: bool) -> None:
    from tidegate_proxy.tritons.mig.changes import cuts_of, node_of

    every = sorted({worker.device.node for worker in layout.workers})
    nodes = [node_of(layout, node)] if node else every
    cuts = {name: cuts_of(layout, name) for name in nodes}
    if as_json:
        document = {
            name: [
                {"gpu": device.id, "instances": [{"profile": mig.profile, "start": mig.start} for mig in instances]}
                for device, instances in cut.items()
            ]
            for name, cut in cuts.items()
        }
        typer.echo(json.dumps(document, indent=2))
        return
    for name, cut in cuts.items():
        for device, instances in cut.items():
            what = ", ".join(f"{mig.profile} at {mig.start}" for mig in instances) or "not cut"
            console.print(f"node {name}, GPU {device.id} ({device.product or 'of an unknown product'}): {what}")


def _tell(console: "Console", found: "Sequence[MigChange]", *, as_json: bool) -> None:
    from tidegate_proxy.tritons.mig.changes import pids

    if as_json:
        document = [
            {
                "gpu": change.gpu.number,
                "stay": [str(each) for each in change.stay],
                "go": [str(each) for each in change.go],
                "come": [f"{mig.profile} at {mig.start}" for mig in change.come],
                "later": [str(each) for each in change.later],
            }
            for change in found
        ]
        typer.echo(json.dumps(document, indent=2))
        return
    for change in found:
        for instance in change.stay:
            console.print(f"  {change.gpu}: {instance}")
        for instance in change.later:
            console.print(f"! {change.gpu}: {instance} is in use, by pid {pids(instance)}: later")
        for instance in change.go:
            console.print(f"- {change.gpu}: {instance}")
        for mig in change.come:
            console.print(f"+ {change.gpu}: {mig.profile} at {mig.start}")
    if not found:
        console.print("The GPUs here are cut as the layout wants it.")


def _env(console: "Console", source: Path, layout: "Layout", node: str, gpus: "Sequence[MigGpu]") -> None:
    from tidegate.schemas import device_variable, read_deployment
    from tidegate_proxy.tritons.mig.changes import check_names, gpu_of, workers_by_cut
    from tidegate_proxy.tritons.mig.instance_lookup import uuids

    variables = {worker.name: device_variable(worker.repository) for worker in read_deployment(source).workers}
    cut = workers_by_cut(layout, node)
    check_names(gpus, cut)
    for device, workers in cut.items():
        for name, uuid in uuids(workers, gpu_of(gpus, device)).items():
            console.print(f"{variables[name]}={uuid}")
