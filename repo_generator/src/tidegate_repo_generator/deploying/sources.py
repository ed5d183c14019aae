"""Sources of a layout's models: blocks of `tidegate split`, or an ONNX file for an unsplit model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Final, Protocol

import onnx

from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.onnx_file import OnnxFile, load_proto, read_onnx
from tidegate_repo_generator.rows.judgment import judge_batching
from tidegate_repo_generator.source import load_data
from tidegate_repo_generator.splitting.blocks import open_blocks
from tidegate_repo_generator.splitting.manifest import FILE_NAME, Manifest, read_manifest
from tidegate_repo_generator.tensorrt.sizes import Shapes

Save = Callable[[int, int, Path], None]
"""Function that writes the partition of the blocks `first`..`last` - 1 to a file. Raises GenerateError, OSError."""

ONNX_SUFFIX: Final = ".onnx"


class ModelSource(Protocol):
    """Model of a layout, whole or in blocks."""

    @property
    def count(self) -> int:
        """Number of blocks."""

    @property
    def shapes(self) -> Shapes:
        """Known request shapes by input, without the rows."""

    def bytes_after(self, block: int) -> int:
        """Return the bytes per row that cross the cut after the blocks 0..`block` - 1."""

    def whole(self) -> OnnxFile:
        """Return the whole model as one file."""

    def open(self) -> Save:
        """Analyze the model, which may take minutes; return a writer of partitions. Raises GenerateError."""

    def __str__(self) -> str:
        """Return the source of the blocks as text for messages."""


@dataclass(frozen=True)
class SplitModel:
    """Model in blocks: a folder that `tidegate split` wrote."""

    path: Path
    folder: Path
    manifest: Manifest

    @property
    def count(self) -> int:
        """Return the number of blocks."""
        return len(self.manifest.blocks)

    @property
    def shapes(self) -> Shapes:
        """Shapes with which the model was split."""
        return ({name: tuple(sizes) for name, sizes in self.manifest.shapes.items()},)

    def bytes_after(self, block: int) -> int:
        """Return the bytes per row that cross the cut after the blocks 0..`block` - 1."""
        return self.manifest.cut_bytes[block - 1]

    def whole(self) -> OnnxFile:
        """Return the whole model as one file."""
        return read_onnx(self.folder / self.manifest.file)

    def open(self) -> Save:
        """Open the blocks; return a writer of partitions. Raises GenerateError."""
        return open_blocks(self.path).save

    def __str__(self) -> str:
        return f"{self.path} holds {self.count} blocks of {self.manifest.model!r}"


@dataclass(frozen=True)
class WholeModel:
    """Unsplit model: an ONNX file that counts as one block."""

    path: Path

    @property
    def count(self) -> int:
        """Return the number of blocks."""
        return 1

    @property
    def shapes(self) -> Shapes:
        """Shapes of the model: none, because an ONNX file declares none."""
        return ()

    def bytes_after(self, block: int) -> int:
        """Raise an error: an unsplit model has no cuts."""
        raise AssertionError(f"block {block} of one")

    def whole(self) -> OnnxFile:
        """Return the whole model as one file."""
        return read_onnx(self.path)

    def open(self) -> Save:
        """Check that requests may share the model's batches. Raises GenerateError if not."""
        verdict = judge_batching(self.whole())
        if verdict.batches is False:
            raise GenerateError(
                f"{self.path} cannot batch: {verdict.reason}. Export it with a dynamic first dimension in every input "
                "and output"
            )
        if verdict.batches is None:
            raise GenerateError(
                f"{self.path} is not shown to batch: {verdict.reason}. If its rows are independent, say so with "
                f"`tidegate split {self.path} --blocks 1 --independent-rows -o DIR`, and give that folder"
            )
        return self._save

    def _save(self, first: int, last: int, path: Path) -> None:
        assert (first, last) == (0, 1)
        if not self.whole().data_files:
            copyfile(self.path, path)
            return
        # Two models may keep their weights in files of one name.
        proto = load_proto(self.path)
        load_data(proto, self.path.parent)
        onnx.save(proto, path, save_as_external_data=True, location=f"{path.name}.data")

    def __str__(self) -> str:
        return f"{self.path} is one block"


def source_of(model: str, path: Path) -> ModelSource:
    """Open the source that `--blocks MODEL=PATH` names. Raises GenerateError, DocumentError."""
    if path.suffix.lower() == ONNX_SUFFIX:
        read_onnx(path)
        return WholeModel(path)
    if not (path if path.is_file() else path / FILE_NAME).is_file():
        raise GenerateError(
            f"--blocks {model}={path}: there is no {path / FILE_NAME}; give a folder that `tidegate split` wrote, or "
            "the ONNX file of a model that is not cut"
        )
    return SplitModel(path, *read_manifest(path))


def paths_of(given: Mapping[str, Path], models: tuple[str, ...], layout: Path) -> dict[str, Path]:
    """Return the paths by model. Raises GenerateError for a model that the layout lacks.

    `given`: paths by model, "" for the only one; `layout`: path of the layout, for messages.
    """
    paths = dict(given)
    if "" in paths:
        if len(models) > 1 or len(paths) > 1:
            raise GenerateError(
                f"--blocks {paths['']}: {layout} has {len(models)} models, so say of which it is: "
                f"--blocks {models[0]}={paths['']}"
            )
        paths[models[0]] = paths.pop("")
    if unknown := sorted(set(paths) - set(models)):
        raise GenerateError(
            f"--blocks {unknown[0]}={paths[unknown[0]]}: {layout} has no model {unknown[0]!r}; it has "
            f"{', '.join(models)}"
        )
    if missing := [name for name in models if name not in paths]:
        raise GenerateError(
            f"{layout}: model {missing[0]!r} has no blocks: say where `tidegate split` wrote them, with "
            f"--blocks {missing[0]}=DIR, or name the ONNX file of a model that is not cut"
        )
    return paths
