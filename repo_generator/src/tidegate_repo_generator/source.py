"""Model as the generator works on it: the graph in memory, its weights in files that sessions map."""

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import TensorProto, external_data_helper

from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.onnx_file import external_tensors

_LARGE: Final = 1024
"""Bytes; smaller tensors may be shapes, which inference looks into."""
_INLINE_BYTES: Final = 2**31 - 2**20
"""Maximum bytes of one protobuf file."""


@dataclass(eq=False)
class Source:
    """Model whose large weights are kept outside of it, because it is copied and loaded many times."""

    proto: Any
    folder: Path
    """Folder of the external weights."""
    external: bool
    """Whether the original keeps its weights in files of their own; models made from it do so too."""
    borrowed: "Source | None" = None
    """Source that owns this folder and must outlive this one; None: this source owns it."""

    def save(self, model: Any, path: Path) -> None:  # noqa: ANN401
        """Write a part of the model with its weights; external ones go into one file, `<name>.data`.

        Raises OSError, and GenerateError if a data file is too short.
        """
        load_data(model, self.folder)
        if self.external or model.ByteSize() > _INLINE_BYTES:
            data = path.with_name(path.name + ".data")
            data.unlink(missing_ok=True)  # onnx would append to it
            onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=_LARGE)
        else:
            onnx.save(model, path)


def open_source(proto: Any, folder: Path) -> Source:  # noqa: ANN401
    """Move the large weights of a model into a temporary file, unless they are in files of their own already.

    `folder`: folder of its data files. The locations in `proto` are changed to the real paths. Raises OSError.
    """
    external = list(external_tensors(proto))
    if external:
        return Source(proto, _resolve(external, folder), external=True)
    scratch = Path(tempfile.mkdtemp(prefix="tidegate-weights-"))
    source = Source(proto, scratch, external=False)
    weakref.finalize(source, shutil.rmtree, scratch, ignore_errors=True)
    with (scratch / "weights").open("wb") as file:
        for tensor in proto.graph.initializer:
            if tensor.HasField("raw_data") and len(tensor.raw_data) > _LARGE:
                offset = file.tell()
                file.write(tensor.raw_data)
                external_data_helper.set_external_data(tensor, "weights", offset, len(tensor.raw_data))
                tensor.ClearField("raw_data")
    return source


def load_data(model: Any, folder: Path) -> None:  # noqa: ANN401
    """Read the external weights of a model into it.

    onnx's own reader refuses files that are symbolic links or have two names, which are common in model caches. Raises
    OSError, and GenerateError if a file is too short.
    """
    for tensor in external_tensors(model):
        info = external_data_helper.ExternalDataInfo(tensor)
        with (folder / info.location).open("rb") as file:
            file.seek(info.offset or 0)
            data = file.read(-1 if info.length is None else info.length)
        if info.length is not None and len(data) < info.length:
            raise GenerateError(
                f"{folder / info.location} ends within tensor '{tensor.name}' ({len(data)} of {info.length} bytes): "
                "save the model again with its external data"
            )
        tensor.raw_data = data
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _resolve(tensors: list[Any], folder: Path) -> Path:
    """Have tensors name their files as these are called behind all links; the folder that all are in.

    onnxruntime refuses links that lead out of the folder.
    """
    named = [
        (tensor, (folder / external_data_helper.ExternalDataInfo(tensor).location).resolve()) for tensor in tensors
    ]
    common = Path(os.path.commonpath([path.parent for _, path in named]))
    for tensor, path in named:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(path.relative_to(common))
    return common
