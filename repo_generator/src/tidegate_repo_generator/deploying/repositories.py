"""Model repositories of the workers, and the scripts beside them."""

import filecmp
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from shutil import copyfile
from typing import Final

from tidegate.schemas import DeployedPartition, DeployedWorker, Deployment, Layout, LayoutWorker
from tidegate_repo_generator.atomic_folder import CONFIG_FILE
from tidegate_repo_generator.config import config_text, model_config
from tidegate_repo_generator.deploying.launch import build_file, launch_file
from tidegate_repo_generator.deploying.places import WorkerPlacement, folder_name
from tidegate_repo_generator.model import DeployTarget, Precision
from tidegate_repo_generator.onnx_file import OnnxFile
from tidegate_repo_generator.tensorrt.engine import BUILD_SCRIPT, PLAN_FILE, engine_of
from tidegate_repo_generator.tensorrt.sizes import Shapes
from tidegate_triton_models import model_source

WEIGHTS_FOLDER: Final = "weights"
"""Folder of the partitions' ONNX files."""
WORKERS_FOLDER: Final = "workers"
_EXECUTABLE: Final = 0o755


@dataclass(frozen=True)
class Repositories:
    """Writer of the repositories of all workers into the folder `new`."""

    new: Path
    layout: Layout
    places: Mapping[str, WorkerPlacement]
    files: Mapping[str, OnnxFile]
    deploy_target: DeployTarget
    precision: Precision
    shapes: Mapping[str, Shapes]
    """Request shapes of each partition, for TensorRT."""
    previous: Path
    """Folder that `new` will replace, if it exists."""

    def write(self) -> Deployment:
        """Write the repositories; return the written paths. Raises GenerateError, OSError."""
        parts = {part.name: part for part in self.layout.partitions}
        pipelines = [pipeline for model in self.layout.models for pipeline in model.pipelines]
        batches = {
            name: max(
                (pipeline.batch for pipeline in pipelines if name in pipeline.partitions),
                default=min(map(len, part.latency_ms.values())),
            )
            for name, part in parts.items()
        }
        folder = self.new / WORKERS_FOLDER
        folder.mkdir()
        engines = Engines(self.new, self.files, batches, self.precision, self.shapes, self.previous)
        for worker in self.layout.workers:
            place = self.places[worker.name]
            for name in worker.hosts:
                self._write_partition(folder / place.folder / name, name, batches[name])
            plans: list[str] = []
            if self.deploy_target is DeployTarget.TENSORRT:
                specs = [engines.write(worker.speed, name) for name in worker.hosts]
                plans = [engines.plan(spec) for spec in specs]
                for name, plan in zip(worker.hosts, plans, strict=True):
                    (folder / place.folder / name / "1" / PLAN_FILE).symlink_to(Path("../../../..") / plan)
                _write_script(folder / f"{place.folder}.build.sh", build_file(worker, specs))
            _write_script(folder / f"{place.folder}.sh", launch_file(worker, place, self.deploy_target, plans))
        return Deployment(
            deploy_target=self.deploy_target.value,
            workers=tuple(_deployed(worker, self.places[worker.name]) for worker in self.layout.workers),
            partitions=tuple(
                DeployedPartition(
                    name=name,
                    model=parts[name].model,
                    blocks=parts[name].blocks,
                    file=str(PurePosixPath(WEIGHTS_FOLDER, file.path.name)),
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
            deploy_target=self.deploy_target,
            max_batch_size=batch,
            instances=1,
            slo_ms=None,
            gpus=() if self.deploy_target is DeployTarget.EMBEDDED else (0,),
            precision=self.precision,
            shapes=self.shapes.get(name, ()),
        )
        (folder / CONFIG_FILE).write_text(config_text(config, source=file.path.name), encoding="utf-8")
        if self.deploy_target is DeployTarget.TENSORRT:
            return
        _link(file.path, version / "model.onnx")
        for data in file.data_files:
            _link(file.path.parent / data, version / data)
        if self.deploy_target is DeployTarget.EMBEDDED:
            copyfile(model_source("onnx_runner"), version / "model.py")


def _deployed(worker: LayoutWorker, place: WorkerPlacement) -> DeployedWorker:
    return DeployedWorker(
        name=worker.name,
        repository=f"{WORKERS_FOLDER}/{place.folder}",
        launch=f"{WORKERS_FOLDER}/{place.folder}.sh",
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


_FOLDER: Final = "engines"


@dataclass(frozen=True)
class Engines:
    """Writer of engine descriptions for `build_engine.py`, each once."""

    deployment: Path
    files: Mapping[str, OnnxFile]
    batches: Mapping[str, int]
    """Largest batch of every partition, in rows; also the usual one."""
    precision: Precision
    shapes: Mapping[str, Shapes]
    previous: Path
    """Folder of the previous deployment, if there is one: engines whose description is unchanged are kept."""
    _kinds: dict[str, str] = field(default_factory=dict)

    def write(self, kind: str, partition: str) -> str:
        """Describe the engine of a partition for a device class; return the path of the file in the deployment."""
        if kind not in self._kinds:
            self._kinds[kind] = folder_name(kind, self._kinds.values())
        spec = PurePosixPath(_FOLDER, self._kinds[kind], f"{partition}.json")
        path = self.deployment / spec
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = self.files[partition]
            engine = engine_of(
                file, precision=self.precision, max_batch=self.batches[partition], shapes=self.shapes[partition]
            )
            onnx = os.path.relpath(file.path, path.parent)
            path.write_text(engine.text(onnx, f"{partition}.plan"), encoding="utf-8")
            copyfile(BUILD_SCRIPT, self.deployment / _FOLDER / BUILD_SCRIPT.name)
            self._keep(spec, file)
        return str(spec)

    def _keep(self, spec: PurePosixPath, file: OnnxFile) -> None:
        """Take over the engine that was there, if its description and its model are what they were."""
        plan = self.plan(str(spec))
        weights = [path.relative_to(self.deployment) for path in (file.path, *_beside(file))]
        if (self.previous / plan).is_file() and all(
            _same(self.previous / path, self.deployment / path) for path in (spec, *weights)
        ):
            copyfile(self.previous / plan, self.deployment / plan)

    @staticmethod
    def plan(spec: str) -> str:
        """Return the path of the engine that is built from a description."""
        return str(PurePosixPath(spec).with_suffix(".plan"))


def _beside(file: OnnxFile) -> list[Path]:
    return [file.path.parent / data for data in file.data_files]


def _same(before: Path, now: Path) -> bool:
    return before.is_file() and filecmp.cmp(before, now, shallow=False)
