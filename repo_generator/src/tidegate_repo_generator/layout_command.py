"""Command `tidegate generate LAYOUT`: a thin layer over `deploy`."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from tidegate_repo_generator.model import DeployTarget, GenerateError, Precision

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.schemas import Layout
    from tidegate_repo_generator.deploying.deploy import GeneratedDeployment


def generate_layout(
    layout: Path,
    output: Path,
    blocks: Iterable[str],
    deploy_target: DeployTarget,
    policy: str | None,
    hosts: Iterable[str],
    port: int | None,
    *,
    nodes: Iterable[str],
    precision: Precision | None,
    profile: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the deployment of a layout and print its contents; the arguments are the options of `tidegate generate`.

    `output`: folder to write. `blocks`: `MODEL=FOLDER` texts. `policy`: name of the policy, None: the default. `hosts`,
    `nodes`: `NODE=NAME` texts. `port`: first port of the workers, None: the default. `precision`, `profile`: for
    TensorRT. `force`: replace a deployment. `as_json`: print JSON.
    """
    from rich.console import Console  # noqa: PLC0415 - this, onnx and onnxruntime are slow to import
    from rich.progress import Progress  # noqa: PLC0415

    from tidegate.schemas import DocumentError, Layout, read_document  # noqa: PLC0415
    from tidegate.terminal import console_for_tables  # noqa: PLC0415
    from tidegate_repo_generator.deploying.deploy import DEFAULT_POLICY, deploy  # noqa: PLC0415
    from tidegate_repo_generator.deploying.places import DEFAULT_PORT  # noqa: PLC0415

    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    try:
        folders = {name: Path(folder) for name, folder in _pairs(blocks, "--blocks").items()}
        called, of_nodes = _pairs(nodes, "--node"), _pairs(hosts, "--host")
        steps = len(folders) + len(read_document(layout, Layout).partitions)
        with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
            task = progress.add_task("reading", total=steps)
            deployed = deploy(
                layout,
                output,
                folders,
                deploy_target=deploy_target,
                policy=policy or DEFAULT_POLICY,
                nodes=called,
                hosts=of_nodes,
                port=port or DEFAULT_PORT,
                precision=precision,
                profile=profile,
                force=force,
                step=lambda what: progress.update(task, advance=1, description=what),
            )
    except (GenerateError, DocumentError) as error:
        errors.print(f"error: {error}")
        raise typer.Exit(1) from error
    notices = [*deployed.notices, *_against(policy or DEFAULT_POLICY, deployed.layout)]
    if as_json:
        typer.echo(json.dumps(_as_json(deployed, notices), indent=2))
        return
    for notice in notices:
        errors.print(f"notice: {notice}")
    console = console_for_tables(markup=False)
    console.print(_as_table(deployed))
    folder = quote(str(output))
    if deploy_target is DeployTarget.EMBEDDED:
        console.print(f"Start it on this machine: tidegate up {folder}")
    else:
        console.print(
            f"Copy {folder} to each node; there cut its GPUs (tidegate mig diff {folder}) and run its workers' launch "
            f"files, or use {folder}/compose or {folder}/kubernetes; then tidegate serve --config "
            f"{folder}/tidegate.yaml"
        )


def _against(policy: str, layout: "Layout") -> list[str]:
    """Return the objections that `tidegate serve` would have to a policy, which need not be installed here."""
    from tidegate.host import Plugins, UnknownPlugin  # noqa: PLC0415

    try:
        spec = Plugins.installed().policy(policy)
    except UnknownPlugin as error:
        return [f"{error}. `tidegate serve` needs it where the proxy runs: say another --policy, or install it there"]
    try:
        spec.policy.check_models(layout.contract()[0])
    except ValueError as error:
        return [f"policy {policy!r} does not serve this layout: {error}"]
    return []


def _pairs(given: Iterable[str], flag: str) -> dict[str, str]:
    """`NAME=VALUE`, or `VALUE` under the name "". Raises GenerateError."""
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            name, value = "", text
        elif not name or not value:
            raise GenerateError(f"{flag} {text}: give NAME=VALUE")
        if name in pairs:
            raise GenerateError(f"{flag} {text}: {f'{name!r} is' if name else 'one without a name is'} given twice")
        pairs[name] = value
    return pairs


def _as_json(deployed: "GeneratedDeployment", notices: Sequence[str]) -> dict[str, Any]:
    workers = [
        {
            **worker.model_dump(mode="json"),
            "grpc": f"{deployed.places[worker.name].host}:{deployed.places[worker.name].grpc_port}",
        }
        for worker in deployed.deployment.workers
    ]
    document = deployed.deployment.model_dump(mode="json")
    return {"path": str(deployed.path), **document, "workers": workers, "notices": notices}


def _as_table(deployed: "GeneratedDeployment") -> "Table":
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from tidegate_repo_generator.deploying.slices import words  # noqa: PLC0415

    table = Table(title=f"Deployment {deployed.path}", title_justify="left")
    for column in ("worker", "node, GPU", "slice", "partitions", "gRPC", "launch file"):
        table.add_column(column, overflow="fold")
    for worker in deployed.deployment.workers:
        place = deployed.places[worker.name]
        table.add_row(
            Text(worker.name),
            Text(f"{worker.device.node}, {worker.device.id}"),
            words(worker.slice),
            Text(", ".join(worker.hosts)),
            f"{place.host}:{place.grpc_port}",
            worker.launch,
        )
    return table
