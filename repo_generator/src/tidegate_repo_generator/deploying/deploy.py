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
from tidegate_repo_generator.deploying.engines import Engines
from tidegate_repo_generator.deploying.launch import build_file, launch_file
from tidegate_repo_generator.deploying.matching import (
    check_batches,
    differing_bytes,
    match_blocks,
    match_tensors,
)
from tidegate_repo_generator.deploying.node_files import write_node_files
from tidegate_repo_generator.deploying.places import DEFAULT_PORT, Place, places_of
from tidegate_repo_generator.deploying.proxy_config import proxy_config
from tidegate_repo_generator.deploying.sources import ModelSource, Save, paths_of, source_of
from tidegate_repo_generator.model import Flavour, GenerateError, Precision
from tidegate_repo_generator.onnx_file import OnnxFile, read_onnx
from tidegate_repo_generator.tensorrt.engine import PLAN_FILE
from tidegate_repo_generator.tensorrt.given_shapes import Shapes, shapes_measured
from tidegate_repo_generator.tensorrt.partition_shapes import shapes_of_partitions
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
    precision: Precision | None = None,
    profile: Path | None = None,
    force: bool = False,
    step: Callable[[str], None] = lambda what: None,
) -> Deployed:
    """Write `output` from a layout and the blocks of its models.

    `blocks`: folders of `tidegate split`, or ONNX files of models that are not cut, by model; where there is one model,
    "" will do for its name.
    `hosts`: addresses by node, "" for all others. `port`: the workers' first. `force`: replace a deployment.
    `precision`, and `profile`, a file with the shapes of requests, are TensorRT's; by default FP32, and the shapes that
    the models were split with.
    `step` is called before each model and each partition. Raises GenerateError, DocumentError.
    """
    target = output.absolute()
    _check_target(target, force=force)
    if not flavour.takes_precision and (precision is not None or profile is not None):
        raise GenerateError(
            f"--flavour {flavour.value} has no TensorRT, which alone needs --precision and --profile: leave them out, "
            "or choose --flavour tensorrt or triton-tensorrt"
        )
    layout = read_document(source, Layout)
    paths = paths_of(blocks, tuple(model.name for model in layout.models), source)
    models = {model: source_of(model, path) for model, path in paths.items()}
    match_blocks(layout, source, models)
    places = places_of(layout.workers, hosts or {}, port)
    requests = _request_shapes(models, profile)
    opened = {}
    for model, path in paths.items():
        step(f"opening {path}")
        opened[model] = models[model].open()
    written: list[tuple[Deployment, Layout]] = []
    notices = differing_bytes(layout, models)

    def fill(new: Path) -> None:
        files = _extract(layout, opened, new / _WEIGHTS, step)
        complete = _with_outputs(layout, models, files)
        shapes: dict[str, Shapes] = {}
        if flavour.takes_precision:
            shapes = shapes_of_partitions(complete, files, requests)
        writer = _Writer(new, complete, places, files, flavour, precision or Precision.FP32, shapes)
        deployment = writer.write()
        write_document(new / LAYOUT_FILE, complete)
        if flavour is not Flavour.EMBEDDED:
            text = (new / LAYOUT_FILE).read_text(encoding="utf-8")
            notices.extend(write_node_files(new, complete, places, flavour, policy, text))
        write_document(new / DEPLOYMENT_FILE, deployment)
        (new / PROXY_FILE).write_text(proxy_config(places, policy), encoding="utf-8")
        written.append((deployment, complete))

    replace_folder(target, fill, in_repository=False)
    ((deployment, complete),) = written
    return Deployed(output, deployment, complete, places, tuple(notices))


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


def _extract(
    layout: Layout, opened: Mapping[str, Save], folder: Path, step: Callable[[str], None]
) -> dict[str, OnnxFile]:
    """The ONNX file of every partition, by its name; one file for those of the same blocks."""
    folder.mkdir()
    files: dict[Path, OnnxFile] = {}
    of: dict[str, OnnxFile] = {}
    for part in layout.partitions:
        step(f"extracting {part.name}")
        path = folder / f"{part.model}.{part.blocks[0]}-{part.blocks[1]}.onnx"
        if path not in files:
            opened[part.model](*part.blocks, path)
            files[path] = read_onnx(path)
        of[part.name] = files[path]
        check_batches(part.name, of[part.name])
    return of


def _with_outputs(layout: Layout, sources: Mapping[str, ModelSource], files: Mapping[str, OnnxFile]) -> Layout:
    """The layout, after a look at its partitions; every model says its outputs, which partitions alone do not tell."""
    models = []
    for model in layout.models:
        outputs = match_tensors(model, sources[model.name].whole(), files)
        models.append(model.model_copy(update={"outputs": outputs}))
    return layout.model_copy(update={"models": tuple(models)})


def _request_shapes(models: Mapping[str, ModelSource], profile: Path | None) -> dict[str, Shapes]:
    """The shapes of every model's requests: as measured, else those with which it was split."""
    if profile is not None:
        return {name: shapes_measured(profile, name) for name in models}
    return {name: model.shapes for name, model in models.items()}


@dataclass(frozen=True)
class _Writer:
    """Writes the workers' repositories and launch files."""

    new: Path
    layout: Layout
    places: Mapping[str, Place]
    files: Mapping[str, OnnxFile]
    flavour: Flavour
    precision: Precision
    shapes: Mapping[str, Shapes]

    def write(self) -> Deployment:
        """Write them all; what is where."""
        parts = {part.name: part for part in self.layout.partitions}
        pipelines = [pipeline for model in self.layout.models for pipeline in model.pipelines]
        batches = {
            name: max(
                (pipeline.batch for pipeline in pipelines if name in pipeline.partitions),
                default=min(map(len, part.latency_ms.values())),
            )
            for name, part in parts.items()
        }
        folder = self.new / _WORKERS
        folder.mkdir()
        engines = Engines(self.new, self.files, batches, self.precision, self.shapes)
        for worker in self.layout.workers:
            place = self.places[worker.name]
            for name in worker.hosts:
                self._write_partition(folder / place.folder / name, name, batches[name])
            plans: list[str] = []
            if self.flavour is Flavour.TENSORRT:
                specs = [engines.write(worker.speed, name) for name in worker.hosts]
                plans = [engines.plan(spec) for spec in specs]
                for name, plan in zip(worker.hosts, plans, strict=True):
                    (folder / place.folder / name / "1" / PLAN_FILE).symlink_to(Path("../../../..") / plan)
                _write_script(folder / f"{place.folder}.build.sh", build_file(worker, specs))
            _write_script(folder / f"{place.folder}.sh", launch_file(worker, place, self.flavour, plans))
        return Deployment(
            flavour=self.flavour.value,
            workers=tuple(_deployed(worker, self.places[worker.name]) for worker in self.layout.workers),
            partitions=tuple(
                DeployedPartition(
                    name=name,
                    model=parts[name].model,
                    blocks=parts[name].blocks,
                    file=str(PurePosixPath(_WEIGHTS, file.path.name)),
                    inputs=tuple(tensor.name for tensor in file.inputs),
                    outputs=tuple(tensor.name for tensor in file.outputs),
                )
                for name, file in self.files.items()
            ),
        )

    def _write_partition(self, folder: Path, name: str, batch: int) -> None:
        """A partition as a model of Triton's: its configuration, and links to its weights, or to its engine."""
        file = self.files[name]
        version = folder / "1"
        version.mkdir(parents=True)
        config = model_config(
            file,
            name=name,
            flavour=self.flavour,
            max_batch_size=batch,
            instances=1,
            slo_ms=None,
            gpus=() if self.flavour is Flavour.EMBEDDED else (0,),
            precision=self.precision,
            shapes=self.shapes.get(name, ()),
        )
        (folder / CONFIG_FILE).write_text(config_text(config, source=file.path.name), encoding="utf-8")
        if self.flavour is Flavour.TENSORRT:
            return
        _link(file.path, version / "model.onnx")
        for data in file.data_files:
            _link(file.path.parent / data, version / data)
        if self.flavour is Flavour.EMBEDDED:
            copyfile(model_source("onnx_runner"), version / "model.py")


def _deployed(worker: LayoutWorker, place: Place) -> DeployedWorker:
    return DeployedWorker(
        name=worker.name,
        repository=f"{_WORKERS}/{place.folder}",
        launch=f"{_WORKERS}/{place.folder}.sh",
        device=worker.device,
        slice=worker.slice,
        hosts=worker.hosts,
    )


def _write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(_EXECUTABLE)


def _link(file: Path, name: Path) -> None:
    """Give a file another name: a hard link, or a symbolic one where the file system has no others."""
    try:
        name.hardlink_to(file)
    except OSError:
        name.symlink_to(os.path.relpath(file, name.parent))
