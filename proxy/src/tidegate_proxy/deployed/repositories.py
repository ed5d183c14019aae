"""Model repositories for workers that a controller adds to a deployment."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate.schemas import (
    INTERFERENCE_FILE,
    LAYOUT_FILE,
    NEIGHBORS_PARAMETER,
    RUN_FOLDER,
    DeployedWorker,
    InterferenceModel,
    Layout,
    LayoutPartition,
    LayoutWorker,
    neighbors_parameter,
    read_deployment,
    read_document,
    write_document,
)
from tidegate_proxy.deployed.folder import DeploymentError

_CONFIG = "config.pbtxt"
_FOLDER, _GENERATED = "workers", "generated"
_GENERATE_S = 600.0
EMULATED_TIMES = "table_ms"
"""Parameter of an emulated GPU with its batch latency: {rows: milliseconds}, as JSON."""


class Repositories:
    """Writer of repositories into a folder of their own. Raises DocumentError for a folder without a deployment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deployment = read_deployment(folder)
        kinds = {worker.name: worker.speed for worker in read_document(folder / LAYOUT_FILE, Layout).workers}
        self._hosts: dict[str, list[tuple[DeployedWorker, str]]] = {}
        """The workers that host each partition, with their kinds."""
        for worker in self._deployment.workers:
            for name in worker.hosts:
                self._hosts.setdefault(name, []).append((worker, kinds.get(worker.name, "")))
        path = folder / INTERFERENCE_FILE
        self._interference = read_document(path, InterferenceModel) if path.exists() else None
        """Interference model of the emulated GPUs; None: no interference."""
        self._generated: tuple[Layout, Path] | None = None
        """The layout for which partitions were made last, and the deployment that has them."""
        for left in (_FOLDER, _GENERATED):  # of a deployment that was killed
            shutil.rmtree(folder / RUN_FOLDER / left, ignore_errors=True)

    def write(self, worker_id: int, worker: LayoutWorker, layout: Layout) -> Path:
        """Write the repository of a layout's worker; return its path. Raises DeploymentError, DocumentError, OSError.

        It takes seconds if partitions must be generated first.
        """
        target = self._folder / RUN_FOLDER / _FOLDER / f"{worker_id}-{plain(worker.name)}"
        shutil.rmtree(target, ignore_errors=True)
        batches = largest_batches(layout)
        for name in worker.hosts:
            model, is_of_its_kind = self._model(name, worker, layout)
            _copy(model, target / name)
            (part,) = (part for part in layout.partitions if part.name == name)
            config = text_format.Parse((target / name / _CONFIG).read_text("utf-8"), model_config_pb2.ModelConfig())
            before = config.SerializeToString(deterministic=True)
            _take_batches(config, batches.get(name, 0))
            if EMULATED_TIMES in config.parameters:
                self._emulate(config, worker, part, is_of_its_kind=is_of_its_kind)
            if config.SerializeToString(deterministic=True) != before:
                (target / name / _CONFIG).unlink()  # it is a link to another worker's
                (target / name / _CONFIG).write_text(text_format.MessageToString(config), encoding="utf-8")
        return target

    def _emulate(
        self,
        config: model_config_pb2.ModelConfig,
        worker: LayoutWorker,
        part: LayoutPartition,
        *,
        is_of_its_kind: bool,
    ) -> None:
        """Have an emulated GPU take the time of this worker, and feel its neighbors. Raises DeploymentError."""
        latency_ms, parameters = part.latency_ms[worker.speed], config.parameters
        if not is_of_its_kind:
            parameters[EMULATED_TIMES].string_value = json.dumps(dict(enumerate(latency_ms, 1)))
        parameters.pop(NEIGHBORS_PARAMETER, None)  # what it says is of the worker that was there before
        if (interference := self._interference) is None:
            return
        file = self._folder / INTERFERENCE_FILE
        if interference.lacks([part.name]):
            raise DeploymentError(
                f"{file} knows nothing of partition {part.name!r}, which worker {worker.name!r} is to host on an "
                f"emulated GPU; it has {', '.join(sorted(interference.models))}: put one there that has it, or none"
            )
        parameters[NEIGHBORS_PARAMETER].string_value = neighbors_parameter(
            interference, self._folder, worker.device, worker.slice, part.name, len(latency_ms)
        )

    def _model(self, name: str, worker: LayoutWorker, layout: Layout) -> tuple[Path, bool]:
        """The folder of a partition in the repository of a worker that hosts it, and whether that is of its kind."""
        (part,) = (part for part in layout.partitions if part.name == name)
        known = {(each.name, each.model, each.blocks) for each in self._deployment.partitions}
        if (name, part.model, part.blocks) in known:
            hosts = sorted(self._hosts.get(name, ()), key=lambda host: host[1] != worker.speed)
            for host, device_class in hosts:
                if (found := self._folder / host.repository / name).is_dir():
                    return found, device_class == worker.speed
        if missing := sorted({model.name for model in layout.models} - self._deployment.sources.keys()):
            have = ", ".join(each.name for each in self._deployment.partitions)
            raise DeploymentError(
                f"worker {worker.name!r} is to host partition {name!r} (blocks {part.blocks[0]} to {part.blocks[1]} of "
                f"{part.model!r}), which {self._folder} does not have; it has {have}, and does not say where the "
                f"blocks of {missing[0]!r} are: generate it again, from a layout with all that the controller may want"
            )
        folder = self._generate(layout)
        (host,) = (host for host in read_deployment(folder).workers if host.name == worker.name)
        return folder / host.repository / name, True

    def _generate(self, layout: Layout) -> Path:
        """A deployment of a layout, made of the blocks that this one was made of."""
        if self._generated is not None and self._generated[0] == layout:
            return self._generated[1]
        folder = self._folder / RUN_FOLDER / _GENERATED
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_document(folder / LAYOUT_FILE, layout)
        blocks = [word for model, path in self._deployment.sources.items() for word in ("--blocks", f"{model}={path}")]
        command = [sys.executable, "-c", "from tidegate.cli import main; main()", "generate"]
        command += [str(folder / LAYOUT_FILE), "--output", str(folder / "deployment"), *blocks]
        try:
            made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GENERATE_S)
        except subprocess.TimeoutExpired as error:
            raise DeploymentError(f"partitions were not generated within {_GENERATE_S:g} s") from error
        if made.returncode:
            raise DeploymentError(f"partitions could not be generated: {' '.join(made.stderr.split())}")
        self._generated = layout, folder / "deployment"
        return folder / "deployment"


def largest_batches(layout: Layout) -> dict[str, int]:
    """Return the largest batch, in rows, that passes through each partition, by name."""
    batches: dict[str, int] = {}
    for model in layout.models:
        for pipeline in model.pipelines:
            for name in pipeline.partitions:
                batches[name] = max(pipeline.batch, batches.get(name, 0))
    return batches


def plain(name: str) -> str:
    """Return a worker's name as a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "worker"


def _copy(model: Path, target: Path) -> None:
    """Give the files of a model other names: hard links, or copies where the file system has no links."""

    def link(source: str, name: str) -> str:
        real = Path(source).resolve()
        try:
            os.link(real, name)
        except OSError:
            shutil.copyfile(real, name)
        return name

    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(model, target, copy_function=link)


def _take_batches(config: model_config_pb2.ModelConfig, batch: int) -> None:
    """Have a model take batches of this many rows; 0: as before."""
    if batch:
        config.max_batch_size = batch
        preferred = [size for size in config.dynamic_batching.preferred_batch_size if size <= batch]
        if config.HasField("dynamic_batching"):
            config.dynamic_batching.preferred_batch_size[:] = preferred
