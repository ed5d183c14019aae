"""Writing the folder that a layout describes."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfile
from typing import Final

from tidegate.documents import (
    DEPLOYMENT_FILE,
    LAYOUT_FILE,
    PROXY_FILE,
    STATE_FILE,
    DeployedPartition,
    DeployedWorker,
    Deployment,
    Layout,
    LayoutWorker,
    read_document,
    write_document,
)
from tidegate_repo_generator.config import config_text, model_config
from tidegate_repo_generator.deploying.launch import launch_file
from tidegate_repo_generator.deploying.matching import (
    check_batches,
    differing_bytes,
    match_blocks,
    match_models,
    match_tensors,
)
from tidegate_repo_generator.deploying.places import DEFAULT_PORT, Place, places_of
from tidegate_repo_generator.deploying.proxy_config import proxy_config
from tidegate_repo_generator.model import Flavour, GenerateError
from tidegate_repo_generator.onnx_file import OnnxFile, read_onnx
from tidegate_repo_generator.splitting.blocks import Blocks, open_blocks
from tidegate_repo_generator.splitting.manifest import Manifest, read_manifest
from tidegate_repo_generator.writing import CONFIG_FILE, replace_folder
from tidegate_triton_models import model_source

DEFAULT_POLICY: Final = "ppipe"
_WEIGHTS: Final = "weights"
_WORKERS: Final = "workers"
_EXECUTABLE: Final = 0o755


@dataclass(frozen=True)
class Deployed:
    """What was written."""

    path: Path
    deployment: Deployment
    layout: Layout
    """With the outputs of every model, as it stands in the folder."""
    places: Mapping[str, Place]
    """The places, by worker."""
    notices: tuple[str, ...]


def deploy(
    source: Path,
    output: Path,
    blocks: Mapping[str, Path],
    *,
    flavour: Flavour = Flavour.EMBEDDED,
    policy: str = DEFAULT_POLICY,
    hosts: Mapping[str, str] | None = None,
    port: int = DEFAULT_PORT,
    force: bool = False,
    step: Callable[[str], None] = lambda what: None,
) -> Deployed:
    """Write `output` from a layout and the blocks of its models.

    `blocks`: folders of `tidegate split`, by model; where there is one model, "" will do for its name.
    `hosts`: addresses by node, "" for all others. `port`: the workers' first. `force`: replace a deployment.
    `step` is called before each model and each partition. Raises GenerateError, DocumentError.
    """
    target = output.absolute()
    _check_target(target, force=force)
    layout = read_document(source, Layout)
    folders = _folders(blocks, layout, source)
    match_models(layout, source, folders)
    manifests = {model: read_manifest(folder)[1] for model, folder in folders.items()}
    match_blocks(layout, source, folders, manifests)
    places = places_of(layout.workers, hosts or {}, port)
    opened = {}
    for model, folder in folders.items():
        step(f"opening {folder}")
        opened[model] = open_blocks(folder)
    written: list[tuple[Deployment, Layout]] = []

    def fill(new: Path) -> None:
        files = _extract(layout, opened, new / _WEIGHTS, step)
        complete = _with_outputs(layout, folders, manifests, files)
        deployment = _write_workers(new, complete, places, files, flavour)
        write_document(new / LAYOUT_FILE, complete)
        write_document(new / DEPLOYMENT_FILE, deployment)
        (new / PROXY_FILE).write_text(proxy_config(places, policy), encoding="utf-8")
        written.append((deployment, complete))

    replace_folder(target, fill, in_repository=False)
    ((deployment, complete),) = written
    return Deployed(output, deployment, complete, places, tuple(differing_bytes(layout, manifests)))


def _check_target(target: Path, *, force: bool) -> None:
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / DEPLOYMENT_FILE).is_file():
        raise GenerateError(
            f"{target} exists and was not written by `tidegate generate` (it has no {DEPLOYMENT_FILE}): remove it "
            "yourself, or choose another --output"
        )
    if (target / STATE_FILE).exists():
        raise GenerateError(f"{target} is in use: `tidegate down {target}` first, or choose another --output")
    if not force:
        raise GenerateError(f"{target} exists: replace it with --force, or choose another --output")


def _folders(blocks: Mapping[str, Path], layout: Layout, source: Path) -> dict[str, Path]:
    folders = dict(blocks)
    if "" in folders:
        if len(layout.models) > 1 or len(folders) > 1:
            raise GenerateError(
                f"--blocks {folders['']}: {source} has {len(layout.models)} models, so say of which it is: "
                f"--blocks {layout.models[0].name}={folders['']}"
            )
        folders[layout.models[0].name] = folders.pop("")
    return folders


def _extract(
    layout: Layout, opened: Mapping[str, Blocks], folder: Path, step: Callable[[str], None]
) -> dict[str, OnnxFile]:
    """The ONNX file of every partition, by its name; one file for those of the same blocks."""
    folder.mkdir()
    files: dict[Path, OnnxFile] = {}
    of: dict[str, OnnxFile] = {}
    for part in layout.partitions:
        step(f"extracting {part.name}")
        path = folder / f"{part.model}.{part.blocks[0]}-{part.blocks[1]}.onnx"
        if path not in files:
            opened[part.model].save(*part.blocks, path)
            files[path] = read_onnx(path)
        of[part.name] = files[path]
        check_batches(part.name, of[part.name])
    return of


def _with_outputs(
    layout: Layout, folders: Mapping[str, Path], manifests: Mapping[str, Manifest], files: Mapping[str, OnnxFile]
) -> Layout:
    """The layout, after a look at its partitions; every model says its outputs, which partitions alone do not tell."""
    models = []
    for model in layout.models:
        whole = read_onnx(read_manifest(folders[model.name])[0] / manifests[model.name].file)
        models.append(model.model_copy(update={"outputs": match_tensors(model, whole, files)}))
    return layout.model_copy(update={"models": tuple(models)})


def _write_workers(
    new: Path, layout: Layout, places: Mapping[str, Place], files: Mapping[str, OnnxFile], flavour: Flavour
) -> Deployment:
    parts = {part.name: part for part in layout.partitions}
    pipelines = [pipeline for model in layout.models for pipeline in model.pipelines]
    batches = {
        name: max(
            (pipeline.batch for pipeline in pipelines if name in pipeline.partitions),
            default=min(map(len, part.latency_ms.values())),
        )
        for name, part in parts.items()
    }
    folder = new / _WORKERS
    folder.mkdir()
    workers = []
    for worker in layout.workers:
        place = places[worker.name]
        for name in worker.hosts:
            _write_partition(folder / place.folder / name, name, files[name], batches[name], flavour)
        script = folder / f"{place.folder}.sh"
        script.write_text(launch_file(worker, place, flavour), encoding="utf-8")
        script.chmod(_EXECUTABLE)
        workers.append(_deployed(worker, place))
    return Deployment(
        flavour=flavour.value,
        workers=tuple(workers),
        partitions=tuple(
            DeployedPartition(
                name=name,
                model=parts[name].model,
                blocks=parts[name].blocks,
                file=str(PurePosixPath(_WEIGHTS, files[name].path.name)),
                inputs=tuple(tensor.name for tensor in files[name].inputs),
                outputs=tuple(tensor.name for tensor in files[name].outputs),
            )
            for name in files
        ),
    )


def _deployed(worker: LayoutWorker, place: Place) -> DeployedWorker:
    return DeployedWorker(
        name=worker.name,
        repository=f"{_WORKERS}/{place.folder}",
        launch=f"{_WORKERS}/{place.folder}.sh",
        device=worker.device,
        slice=worker.slice,
        hosts=worker.hosts,
    )


def _write_partition(folder: Path, name: str, file: OnnxFile, batch: int, flavour: Flavour) -> None:
    """A partition as a model of Triton's: its configuration, and links to its weights."""
    version = folder / "1"
    version.mkdir(parents=True)
    config = model_config(file, name=name, flavour=flavour, max_batch_size=batch, instances=1, slo_ms=None)
    (folder / CONFIG_FILE).write_text(config_text(config, source=file.path.name), encoding="utf-8")
    _link(file.path, version / "model.onnx")
    for data in file.data_files:
        _link(file.path.parent / data, version / data)
    if flavour is Flavour.EMBEDDED:
        copyfile(model_source("onnx_runner"), version / "model.py")


def _link(file: Path, name: Path) -> None:
    """Give a file another name: a hard link, or a symbolic one where the file system has no others."""
    try:
        name.hardlink_to(file)
    except OSError:
        name.symlink_to(os.path.relpath(file, name.parent))
