"""The model as it is worked on: the graph in memory, its weights in files that sessions map."""

import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import external_data_helper

_LARGE: Final = 1024
"""Bytes; smaller tensors may be shapes, which inference looks into."""
_INLINE_BYTES: Final = 2**31 - 2**20
"""What one file of protobuf can hold."""


@dataclass(eq=False)
class Source:
    """A model whose large weights are outside of it, for it is copied and loaded many times."""

    proto: Any
    folder: Path
    """The folder of the external weights."""
    external: bool
    """Whether the original keeps its weights in files of their own; then what is made of it does so, too."""

    def save(self, model: Any, path: Path) -> None:  # noqa: ANN401
        """Write a part of the model with the weights that it has; external ones into one file, `<name>.data`.

        Raises OSError.
        """
        external_data_helper.load_external_data_for_model(model, str(self.folder))
        if self.external or model.ByteSize() > _INLINE_BYTES:
            data = path.with_name(path.name + ".data")
            data.unlink(missing_ok=True)  # onnx would append to it
            onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=_LARGE)
        else:
            onnx.save(model, path)


def open_source(proto: Any, folder: Path) -> Source:  # noqa: ANN401
    """Put the large weights of a model into a scratch file, unless they are in files of their own already."""
    tensors = list(proto.graph.initializer)
    if any(external_data_helper.uses_external_data(tensor) for tensor in tensors):
        return Source(proto, folder, external=True)
    scratch = Path(tempfile.mkdtemp(prefix="tidegate-weights-"))
    with (scratch / "weights").open("wb") as file:
        for tensor in tensors:
            if tensor.HasField("raw_data") and len(tensor.raw_data) > _LARGE:
                offset = file.tell()
                file.write(tensor.raw_data)
                external_data_helper.set_external_data(tensor, "weights", offset, len(tensor.raw_data))
                tensor.ClearField("raw_data")
    source = Source(proto, scratch, external=False)
    weakref.finalize(source, shutil.rmtree, scratch, ignore_errors=True)
    return source
