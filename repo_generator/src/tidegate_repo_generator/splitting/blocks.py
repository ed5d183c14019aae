"""Model with its cuts: builds the models of blocks, and of partitions that join consecutive blocks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from onnx import TensorProto

from tidegate_repo_generator.dataflow import Dataflow, SplitError
from tidegate_repo_generator.model import Tensor
from tidegate_repo_generator.onnx_file import TRITON_TYPES, load_proto, read_onnx
from tidegate_repo_generator.rows.samples import read_rows
from tidegate_repo_generator.source import Source, open_source
from tidegate_repo_generator.splitting.batch_dim import with_symbolic_batch
from tidegate_repo_generator.splitting.cutting import Cutter, NodeSpan
from tidegate_repo_generator.splitting.extraction import Extraction
from tidegate_repo_generator.splitting.inputs import Shapes, with_sizes
from tidegate_repo_generator.splitting.manifest import CrossingTensor, read_manifest
from tidegate_repo_generator.splitting.probing import probe, size_in_bytes


@dataclass
class Blocks:
    """Model that is cut at positions."""

    cutter: Cutter
    source: Source
    positions: list[int]
    """Positions of the cuts, ascending."""
    fp16: bool = False
    crossings: list[frozenset[str]] = field(init=False)
    """Names of the tensors that cross each cut."""
    spans: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        """Find what crosses. Raises CutRefused."""
        self.crossings = self.cutter.crossings(self.positions)
        self.spans = list(pairwise([0, *self.positions, self.cutter.end]))
        self._extraction = Extraction(self.cutter, self.fp16)
        for number in range(len(self.spans)):
            if not self._outputs(number, number + 1):
                raise SplitError(
                    f"nothing of what is computed between the cuts {self.cutter.where(self.spans[number][0])} and "
                    f"{self.cutter.where(self.spans[number][1])} is sent on: leave one of the two out"
                )

    def model(self, first: int, last: int) -> Any:  # noqa: ANN401
        """Build the ModelProto of the partition of the blocks `first`..`last` - 1. Raises SplitError."""
        span, after = self.span(first, last), self._after(last)
        name = f"{self.cutter.flow.proto.graph.name}/{first}-{last}"
        model = self._extraction.model(span, self._outputs(first, last), after, name)
        if not span.inputs:
            raise SplitError(f"blocks {first} to {last - 1} depend on no input: join them with the blocks before")
        return model

    def span(self, first: int, last: int) -> NodeSpan:
        """Return the nodes and inputs of the partition of the blocks `first`..`last` - 1. Raises SplitError."""
        if not 0 <= first < last <= len(self.spans):
            raise SplitError(f"blocks {first} to {last} (exclusive): the last block is {len(self.spans) - 1}")
        before = self.crossings[first - 1] if first else frozenset(self.cutter.flow.inputs)
        return self.cutter.span(self.spans[first][0], self.spans[last - 1][1], before)

    def crossing_tensors(self, cut: int) -> list[CrossingTensor]:
        """Describe the tensors that cross a cut, for the manifest."""
        tensors = []
        for value in sorted(self.crossings[cut], key=self.cutter.order):
            boundary = self.cutter.probe.boundary(value)
            name, data_type = self._extraction.sent_as(value)
            elements = boundary.elements_per_row
            halved = boundary.data_type == TensorProto.FLOAT and value not in self.cutter.flow.inputs
            tensors.append(
                CrossingTensor(
                    name=name,
                    value=value,
                    data_type=TRITON_TYPES[data_type],
                    shape=self._extraction.shape(value),
                    bytes_per_row=size_in_bytes(data_type, elements),
                    fp16_bytes_per_row=2 * elements if halved else size_in_bytes(boundary.data_type, elements),
                )
            )
        return tensors

    def weight_bytes(self, number: int) -> int:
        """Return the size in bytes of the initializers and constants of a block."""
        flow, span = self.cutter.flow, self.span(number, number + 1)
        tensors = [flow.weights[name] for name in span.weights]
        constants = [flow.nodes[index] for index in span.nodes if flow.nodes[index].op_type == "Constant"]
        tensors += [entry.t for node in constants for entry in node.attribute if entry.HasField("t")]
        dense = [tensor if isinstance(tensor, TensorProto) else tensor.values for tensor in tensors]
        return sum(size_in_bytes(tensor.data_type, math.prod(tensor.dims)) for tensor in dense)

    def node_names(self, number: int) -> list[str]:
        """Return the names of a block's nodes on data."""
        start, stop = self.spans[number]
        return [self.cutter.flow.label(index) for index in self.cutter.flow.data_nodes[start:stop]]

    def save(self, first: int, last: int, path: Path) -> None:
        """Write the partition of the blocks `first`..`last` - 1, with its weights. Raises SplitError, OSError."""
        self.source.save(self.model(first, last), path)

    def _after(self, last: int) -> frozenset[str]:
        return self.crossings[last - 1] if last <= len(self.crossings) else frozenset()

    def _outputs(self, first: int, last: int) -> list[str]:
        return self.cutter.outputs(self.spans[first][0], self.spans[last - 1][1], self._after(last))


def open_model(
    path: Path, shapes: Shapes, *, batch_dim: bool = False, real: Sequence[Path] = ()
) -> tuple[Cutter, tuple[Tensor, ...], Source]:
    """Analyze a model for cutting; `batch_dim`: after a fixed batch of 1 was made symbolic.

    `real`: files with representative inputs. Raises SplitError, RunError.
    """
    inputs = with_sizes(read_onnx(path).inputs, shapes)
    given = read_rows(real, inputs) if real else None
    for tensor in () if batch_dim else inputs:
        if not tensor.shape:
            raise SplitError(
                f"{path}: input '{tensor.name}' is a scalar, which has no rows: export it with a row for each"
            )
        if isinstance(tensor.shape[0], int):
            raise SplitError(
                f"the first dimension of input '{tensor.name}' is fixed at {tensor.shape[0]}: export it with a "
                "dynamic batch, or have it made dynamic where the graph allows with --batch-dim"
            )
    source = with_symbolic_batch(path, real) if batch_dim else open_source(load_proto(path), path.parent)
    flow = Dataflow(source.proto)
    return Cutter(flow, probe(flow, inputs, source.folder, given)), inputs, source


def open_blocks(path: Path, *, fp16: bool | None = None) -> Blocks:
    """Open a folder of blocks, or its manifest, to extract partitions from it.

    `fp16`: whether partitions send float32 as float16; by default as the blocks do. Raises SplitError, DocumentError.
    """
    folder, manifest = read_manifest(path)
    model = folder / manifest.file
    shapes = {name: tuple(sizes) for name, sizes in manifest.shapes.items()}
    cutter, _, source = open_model(model, shapes)
    blocks = Blocks(cutter, source, list(manifest.cuts), manifest.fp16 if fp16 is None else fp16)
    for number, (found, listed) in enumerate(zip(blocks.crossings, manifest.crossings, strict=True)):
        if found != {tensor.value for tensor in listed}:
            raise SplitError(
                f"{path}: what crosses cut {number} of {model.name} is not what the manifest lists: one of the two was "
                "changed; split the model again"
            )
    return blocks


def write_partition(path: Path, first: int, last: int, output: Path, *, fp16: bool | None = None) -> None:
    """Join the blocks `first`..`last` - 1 of a folder of blocks into one ONNX model. See `open_blocks`.

    `output`: file to write; `fp16`: whether tensors between partitions are sent as fp16.
    """
    open_blocks(path, fp16=fp16).save(first, last, output)
