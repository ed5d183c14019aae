"""Manifest beside the blocks: describes the cuts of a model, and the tensors that cross them."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidegate.api import VersionedDocument
from tidegate.schemas import DocumentError, read_document

FILE_NAME = "blocks.json"
WHOLE_NAME = "model.onnx"


class CrossingTensor(BaseModel):
    """A tensor that crosses a cut."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    """Name of the tensor that is sent: an output of one block, an input of another."""
    value: str
    """Name in the model; it differs from `name` only where the tensor is cast to be sent."""
    data_type: str
    """Element type as sent, in Triton's notation."""
    shape: list[int | str]
    """Dimensions; a string names a dynamic one ("" if unnamed). The first is the batch."""
    bytes_per_row: int = Field(ge=0)
    """Bytes per row as sent; for strings, only the four bytes of each length."""
    fp16_bytes_per_row: int = Field(ge=0)
    """Bytes per row with float32 sent as float16."""


class Block(BaseModel):
    """One block of a split model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    file: str
    """File name, in the folder of the manifest."""
    nodes: list[str]
    """Names of the model's nodes on data, in order; weights and shape arithmetic are repeated where they are needed."""
    inputs: list[str]
    """Names of the tensors that the block takes: inputs of the model, or outputs of any earlier block."""
    outputs: list[str]
    run_time_us: float | None
    """Run time of the block's nodes, in microseconds, in the profile by which the model was cut."""
    weight_bytes: int = Field(ge=0)


class Verification(BaseModel):
    """Difference between the chained blocks and the model, on random inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rows: int
    max_difference: float
    """Largest difference of an output, relative to the largest value of that output."""
    fp16_max_difference: float | None
    """Largest relative difference with float32 sent as float16."""


class Manifest(VersionedDocument):
    """Description of a model that was cut into blocks."""

    kind: Literal["onnx_blocks"] = "onnx_blocks"
    model: str
    file: str = WHOLE_NAME
    """File of the whole model, in the folder of the manifest: partitions are extracted from it."""
    fp16: bool
    """Whether float32 is sent as float16."""
    shapes: dict[str, list[int]]
    """Sizes of the inputs, without the batch, for which bytes and run times were determined."""
    cuts: list[int]
    """Positions of the cuts among the nodes on data: the first node of the next block."""
    crossings: list[list[CrossingTensor]]
    """Tensors that cross each cut, from any earlier block."""
    blocks: list[Block] = Field(min_length=1)
    verification: Verification

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not len(self.cuts) == len(self.crossings) == len(self.blocks) - 1:
            raise ValueError(
                f"{len(self.blocks)} blocks, {len(self.cuts)} cuts and {len(self.crossings)} crossings: there is one "
                "cut less than blocks"
            )
        return self

    @property
    def cut_bytes(self) -> list[int]:
        """Bytes per row that cross each cut, as sent; at least 1."""
        return [max(1, sum(tensor.bytes_per_row for tensor in crossing)) for crossing in self.crossings]


def read_manifest(path: Path) -> tuple[Path, Manifest]:
    """Read a manifest, given its path or its folder; return the folder too. Raises DocumentError."""
    file = path / FILE_NAME if path.is_dir() else path
    if not file.exists():
        raise DocumentError(f"{path}: there are no blocks: `tidegate split MODEL.onnx -o DIR` writes them")
    return file.parent, read_document(file, Manifest)
