"""Model repositories of the workers, and the scripts beside them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfile
from typing import Final

from tidegate.schemas import DeployedPartition, DeployedWorker, Deployment, Layout, LayoutWorker
from tidegate_repo_generator.atomic_folder import CONFIG_FILE
from tidegate_repo_generator.config import config_text, model_config
from tidegate_repo_generator.deploying.engines import Engines
from tidegate_repo_generator.deploying.launch import build_file, launch_file
from tidegate_repo_generator.deploying.places import WorkerPlacement
from tidegate_repo_generator.model import DeployTarget, Precision
from tidegate_repo_generator.onnx_file import OnnxFile
from tidegate_repo_generator.tensorrt.engine import PLAN_FILE
from tidegate_repo_generator.tensorrt.given_shapes import Shapes
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
        """Write the repositories; return the paths of what was written. Raises GenerateError, OSError."""
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
