"""Where the models of a layout come from: blocks of `tidegate split`, or an ONNX file for a model that is not cut."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Final, Protocol

import onnx

from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.onnx_file import OnnxFile, load_proto, read_onnx
from tidegate_repo_generator.rows.judgement import judge_batching
from tidegate_repo_generator.source import load_data
from tidegate_repo_generator.splitting.blocks import open_blocks
from tidegate_repo_generator.splitting.manifest import FILE_NAME, Manifest, read_manifest
from tidegate_repo_generator.tensorrt.given_shapes import Shapes

Save = Callable[[int, int, Path], None]
"""Writes the partition of the blocks `first`..`last` - 1 to a file. Raises GenerateError, OSError."""

ONNX_SUFFIX: Final = ".onnx"


class ModelSource(Protocol):
    """A model, whole or in blocks."""

    @property
    def count(self) -> int:
        """How many blocks it has."""

    @property
    def shapes(self) -> Shapes:
        """The shapes of requests that are known of, without the rows."""

    def bytes_after(self, block: int) -> int:
        """How many bytes a row has behind the blocks 0..`block` - 1, which are not all."""

    def whole(self) -> OnnxFile:
        """All of it, as one file."""

    def open(self) -> Save:
        """Analyse it, which may take long. Raises GenerateError."""

    def __str__(self) -> str:
        """What holds which blocks, for messages."""


@dataclass(frozen=True)
class SplitModel:
    """A folder that `tidegate split` wrote."""

    path: Path
    folder: Path
    manifest: Manifest

    @property
    def count(self) -> int:
        """See ModelSource."""
        return len(self.manifest.blocks)

    @property
    def shapes(self) -> Shapes:
        """The one with which it was split."""
        return ({name: tuple(sizes) for name, sizes in self.manifest.shapes.items()},)

    def bytes_after(self, block: int) -> int:
        """See ModelSource."""
        return self.manifest.cut_bytes[block - 1]

    def whole(self) -> OnnxFile:
        """See ModelSource."""
        return read_onnx(self.folder / self.manifest.file)

    def open(self) -> Save:
        """See ModelSource."""
        return open_blocks(self.path).save

    def __str__(self) -> str:
        return f"{self.path} holds {self.count} blocks of {self.manifest.model!r}"


@dataclass(frozen=True)
class WholeModel:
    """An ONNX file: one block."""

    path: Path

    @property
    def count(self) -> int:
        """See ModelSource."""
        return 1

    @property
    def shapes(self) -> Shapes:
        """None is known."""
        return ()

    def bytes_after(self, block: int) -> int:
        """There is no such place."""
        raise AssertionError(f"block {block} of one")

    def whole(self) -> OnnxFile:
        """See ModelSource."""
        return read_onnx(self.path)

    def open(self) -> Save:
        """Make sure that requests may share its batches. Raises GenerateError."""
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
    """What `--blocks MODEL=PATH` names. Raises GenerateError, DocumentError."""
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
    """The paths by model; where there is one model, "" will do for its name. Raises GenerateError."""
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
