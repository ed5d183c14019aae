"""The document beside the blocks: what was cut where, and what crosses each cut."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidegate.api import VersionedDocument
from tidegate.schemas import read_document

FILE_NAME = "blocks.json"
WHOLE_NAME = "model.onnx"


class CrossingTensor(BaseModel):
    """A tensor that crosses a cut."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    """The name of the tensor that is sent: an output of one block, an input of another."""
    value: str
    """Its name in the model; another one only where it is cast to be sent."""
    data_type: str
    """As sent, in Triton's words."""
    shape: list[int | str]
    """Names are dynamic dimensions ("" where it has none); the first is the batch."""
    bytes_per_row: int = Field(ge=0)
    """As sent; of strings, the four bytes of their lengths only."""
    fp16_bytes_per_row: int = Field(ge=0)
    """The same with float32 sent as float16."""


class Block(BaseModel):
    """One block."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    file: str
    """Beside the manifest."""
    nodes: list[str]
    """The nodes of the model that work on data, in order; weights and shapes are repeated where they are needed."""
    inputs: list[str]
    """Tensors by name: inputs of the model, or outputs of any block before."""
    outputs: list[str]
    run_time_us: float | None
    """How long its nodes ran in the profile by which the model was cut."""
    weight_bytes: int = Field(ge=0)


class Verification(BaseModel):
    """How far the blocks in a row are from the model, on random inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rows: int
    max_difference: float
    """Largest difference of an output, relative to the largest value of that output."""
    fp16_max_difference: float | None
    """The same with float32 sent as float16."""


class Manifest(VersionedDocument):
    """A model that was cut into blocks."""

    kind: Literal["onnx_blocks"] = "onnx_blocks"
    model: str
    file: str = WHOLE_NAME
    """The whole model, beside the manifest: partitions are extracted from it."""
    fp16: bool
    """Whether float32 is sent as float16."""
    shapes: dict[str, list[int]]
    """Sizes of the inputs, without the batch, with which bytes and run times were found."""
    cuts: list[int]
    """Positions among the nodes on data: the first of the next block."""
    crossings: list[list[CrossingTensor]]
    """What crosses each cut, from whichever block it comes."""
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
    """Read a manifest, or that of a folder; with its folder. Raises DocumentError."""
    file = path / FILE_NAME if path.is_dir() else path
    return file.parent, read_document(file, Manifest)
