"""Command `tidegate generate`: a thin layer over `generate_model`, and over `deploy` for layouts (`layout_command`)."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate_repo_generator.layout_command import generate_layout
from tidegate_repo_generator.model import DeployTarget, GeneratedModel, GenerateError, Precision, Tensor

if TYPE_CHECKING:
    from rich.table import Table

LAYOUT_SUFFIXES = {".json", ".yaml", ".yml"}
_FOR_MODELS = "For a model"
_FOR_LAYOUTS = "For a layout"
_FOR_TENSORRT = "For TensorRT"
_for_model = partial(typer.Option, show_default=False, rich_help_panel=_FOR_MODELS)
_for_layout = partial(typer.Option, show_default=False, rich_help_panel=_FOR_LAYOUTS)
_for_tensorrt = partial(typer.Option, show_default=False, rich_help_panel=_FOR_TENSORRT)


def generate(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL.onnx|LAYOUT.json",
            help="ONNX model; or a planner's layout (JSON or YAML) of split models.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Model repository to add the model to; for a layout a folder of its own.",
            show_default=False,
        ),
    ],
    name: Annotated[str | None, _for_model(help="Name of the model in Triton. [default: MODEL's name]")] = None,
    instances: Annotated[
        int, typer.Option(min=1, help="Instances of the model in Triton.", rich_help_panel=_FOR_MODELS)
    ] = 1,
    max_batch: Annotated[
        int | None,
        _for_model(
            min=0,
            metavar="B",
            help="Largest batch, in rows (0 turns batching off). [default: 32 for a model that can batch]",
        ),
    ] = None,
    batch_dim: Annotated[
        bool,
        typer.Option(
            "--batch-dim",
            help="Make a fixed batch of 1 dynamic first, where the graph allows.",
            rich_help_panel=_FOR_MODELS,
        ),
    ] = False,
    inputs: Annotated[
        list[Path] | None,
        _for_model(
            metavar="FILE", help="Real inputs (.npz, .npy) that test whether requests may share a batch. Repeatable."
        ),
    ] = None,
    slo_ms: Annotated[
        float | None,
        _for_model(
            metavar="MS",
            help="SLO of the model, in milliseconds from a request's arrival to its answer. [default: none]",
        ),
    ] = None,
    blocks: Annotated[
        list[str] | None,
        _for_layout(
            metavar="[MODEL=]DIR|FILE.onnx",
            help="Blocks of a model (`tidegate split`), or an ONNX model that is not split. Repeatable.",
        ),
    ] = None,
    policy: Annotated[str | None, _for_layout(help="Scheduling policy of the proxy. [default: ppipe]")] = None,
    node: Annotated[
        list[str] | None,
        _for_layout(
            metavar="[NODE=]NAME", help="Host name, or name in Kubernetes, of a node of the layout. Repeatable."
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        _for_layout(
            metavar="[NODE=]ADDRESS",
            help="Address at which the proxy reaches the workers of a node (or of all). Repeatable. [default: "
            "this machine]",
        ),
    ] = None,
    port: Annotated[
        int | None,
        _for_layout(
            min=1,
            max=65533,
            help="HTTP port of the first worker on each host; gRPC and metrics follow, other workers 10 apart. "
            "[default: 9000]",
        ),
    ] = None,
    deploy_target: Annotated[
        DeployTarget,
        typer.Option(
            help="Triton that serves the model. embedded: Python backend on the CPU. triton: ONNX Runtime "
            "backend. triton-tensorrt: ONNX Runtime with TensorRT. tensorrt: engines, built on their GPU."
        ),
    ] = DeployTarget.EMBEDDED,
    precision: Annotated[
        Precision | None, _for_tensorrt(help="Precision that TensorRT may use. [default: fp32]")
    ] = None,
    shape: Annotated[
        list[str] | None,
        _for_tensorrt(
            metavar="NAME:SIZE,SIZE...",
            help="Dimensions of an input without rows, the usual ones first. Repeatable: all between them work.",
        ),
    ] = None,
    profiles: Annotated[
        Path | None,
        _for_tensorrt(metavar="FILE", help="Profile file (`tidegate profile`) whose shapes count as --shape."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing model with all its versions, or an existing folder.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a Triton model repository from ONNX or a layout.

    Names, types and shapes come from the ONNX file. Whether requests may share
    a batch is tested where the first dimension of every input and output is
    dynamic: rows are run alone and in a batch, and the graph is analyzed. In
    doubt, requests run one at a time. Triton's clients find the model under its
    NAME; Tidegate reads the SLO from its config.pbtxt.

    Example, a text recognizer that answers within 70 ms, on two instances:

        tidegate generate recognize.onnx -o models --instances 2 --slo-ms 70

    From a layout and the blocks of its models the command writes a repository
    and a launch file for each worker, and the proxy's configuration, which
    `tidegate up` starts:

        tidegate generate layout.json --blocks recognize=blocks -o deployment
    """
    from rich.console import Console  # noqa: PLC0415 - this, onnx and onnxruntime are slow to import

    from tidegate.terminal import console_for_tables  # noqa: PLC0415
    from tidegate_repo_generator.generate import generate_model  # noqa: PLC0415
    from tidegate_repo_generator.tensorrt.sizes import shapes_given  # noqa: PLC0415

    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    if model.suffix.lower() in LAYOUT_SUFFIXES:
        _refuse(context, _FOR_MODELS, f"{model} is a layout, which says that itself")
        if shape:
            raise typer.BadParameter("is for one model; of a layout's say --profiles", param_hint="--shape")
        generate_layout(
            model,
            output,
            blocks or [],
            deploy_target,
            policy,
            host or [],
            port,
            nodes=node or [],
            precision=precision,
            profile=profiles,
            force=force,
            as_json=as_json,
        )
        return
    _refuse(context, _FOR_LAYOUTS, f"is for layouts (.json, .yaml), and {model} is none")
    try:
        with errors.status(f"generating from {model.name}"):
            generated = generate_model(
                model,
                output,
                name=name,
                instances=instances,
                max_batch=max_batch,
                batch_dim=batch_dim,
                slo_ms=slo_ms,
                deploy_target=deploy_target,
                precision=precision,
                shapes=shapes_given(shape or [], profiles, name or model.stem),
                real=inputs or [],
                force=force,
            )
    except (GenerateError, OSError) as error:
        errors.print(f"error: {error}")
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(_as_json(generated), indent=2))
        return
    for notice in generated.notices:
        errors.print(f"notice: {notice}")
    console_for_tables(markup=False).print(_as_table(generated))


def _refuse(context: typer.Context, panel: str, why: str) -> None:
    """Raise BadParameter for an option of this panel of the help that is on the command line."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if getattr(parameter, "rich_help_panel", None) == panel and source and source.name == "COMMANDLINE":
            raise typer.BadParameter(why, param_hint=parameter.opts[0])


def _as_json(model: GeneratedModel) -> dict[str, Any]:
    def tensors(group: tuple[Tensor, ...]) -> list[dict[str, Any]]:
        return [{"name": tensor.name, "data_type": tensor.data_type, "shape": tensor.dims} for tensor in group]

    return {
        "name": model.name,
        "path": str(model.path),
        "deploy_target": model.deploy_target,
        "max_batch_size": model.max_batch_size,
        "instances": model.instances,
        "slo_ms": model.slo_ms,
        "inputs": tensors(model.inputs),
        "outputs": tensors(model.outputs),
        "files": [str(file) for file in model.files],
        "notices": model.notices,
    }


def _as_table(model: GeneratedModel) -> "Table":
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    def tensors(group: tuple[Tensor, ...]) -> str:
        return "\n".join(f"{tensor.name}: {tensor.data_type} {_shape(model, tensor)}" for tensor in group)

    table = Table(title=f"Model {model.name}", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for what, value in (
        ("folder", str(model.path)),
        ("files", "\n".join(map(str, model.files))),
        ("deploy_target", model.deploy_target.value),
        ("inputs", tensors(model.inputs)),
        ("outputs", tensors(model.outputs)),
        ("batch", f"up to {model.max_batch_size} rows" if model.max_batch_size else "none: one request at a time"),
        ("instances", str(model.instances)),
        ("SLO", "none" if model.slo_ms is None else f"{model.slo_ms:g} ms"),
    ):
        table.add_row(what, Text(value))
    return table


def _shape(model: GeneratedModel, tensor: Tensor) -> str:
    sizes = ["rows", *tensor.dims[1:]] if model.max_batch_size else tensor.dims
    return f"[{', '.join('any' if size == -1 else str(size) for size in sizes)}]"
