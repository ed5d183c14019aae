"""TensorRT engines of a deployment: one for each partition and device class, shared by all workers of the class."""

import filecmp
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from shutil import copyfile
from typing import Final

from tidegate_repo_generator.deploying.places import folder_name
from tidegate_repo_generator.model import Precision
from tidegate_repo_generator.onnx_file import OnnxFile
from tidegate_repo_generator.tensorrt.engine import BUILD_SCRIPT, engine_of
from tidegate_repo_generator.tensorrt.given_shapes import Shapes

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
