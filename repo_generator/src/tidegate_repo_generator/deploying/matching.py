"""Checks that a layout fits the blocks of its models, and that its partitions fit each other."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from tidegate.schemas import Layout, LayoutModel, LayoutPartition
from tidegate_repo_generator.deploying.sources import ModelSource
from tidegate_repo_generator.generate import valid_name
from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.onnx_file import OnnxFile


def match_blocks(layout: Layout, source: Path, models: Mapping[str, ModelSource]) -> None:
    """Check that partitions and blocks belong together. `source`: file of the layout. Raises GenerateError if not."""
    for name in [*models, *(part.name for part in layout.partitions)]:
        valid_name(name)
    parts = {part.name: part for part in layout.partitions}
    for part in layout.partitions:
        if part.model not in models:
            raise GenerateError(f"{source}: partition {part.name!r} is of model {part.model!r}, which is not listed")
        _match_partition(part, source, models[part.model])
    for model in layout.models:
        _match_ends(model, parts, source, models[model.name])


def _match_partition(part: LayoutPartition, source: Path, model: ModelSource) -> None:
    if part.blocks[1] > model.count:
        raise GenerateError(
            f"{source}: partition {part.name!r} has the blocks {list(part.blocks)}, but {model}: is the layout of "
            f"other blocks? Split with --blocks {part.blocks[1]} or more, or plan again"
        )


def _match_ends(model: LayoutModel, parts: Mapping[str, LayoutPartition], source: Path, of: ModelSource) -> None:
    """Every pipeline must run the whole model."""
    for pipeline in model.pipelines:
        last = parts[pipeline.partitions[-1]]
        if last.blocks[1] != of.count:
            raise GenerateError(
                f"{source}: model {model.name!r}: the pipeline {list(pipeline.partitions)} ends with block "
                f"{last.blocks[1]}, but {of}: is the layout of other blocks?"
            )


def differing_bytes(layout: Layout, models: Mapping[str, ModelSource]) -> list[str]:
    """Return notices on partitions whose tensors have other sizes in bytes than the layout was planned with."""
    notices = []
    for part in layout.partitions:
        model = models[part.model]
        if part.blocks[1] < model.count and part.bytes_per_row:
            found = model.bytes_after(part.blocks[1])
            if found != part.bytes_per_row:
                notices.append(
                    f"partition {part.name!r} sends {found} bytes per row, and the layout was planned with "
                    f"{part.bytes_per_row}: plan again with these blocks for transfers that are true."
                )
    return notices


def match_tensors(model: LayoutModel, whole: OnnxFile, files: Mapping[str, OnnxFile]) -> tuple[str, ...]:
    """Check that each partition finds its inputs; return the outputs that clients get, in order.

    `files`: the partitions by name. An input of a partition must be an input of the first partition of its pipeline, or
    an output of an earlier one: the proxy knows a model's inputs by its first partition. Raises GenerateError
    otherwise.
    """
    for pipeline in model.pipelines:
        first = files[pipeline.partitions[0]]
        if missing := _missing((tensor.name for tensor in whole.inputs), first):
            raise GenerateError(
                f"model {model.name!r}: its input {missing[0]!r} is not taken by {pipeline.partitions[0]!r}, the first "
                "partition of a pipeline, which stands for the model's inputs: put the blocks that take it into that "
                "partition"
            )
        there = {tensor.name for tensor in first.inputs}
        for name in pipeline.partitions:
            if unknown := [tensor.name for tensor in files[name].inputs if tensor.name not in there]:
                raise GenerateError(
                    f"partition {name!r} takes {unknown[0]!r}, which no partition before it in "
                    f"{list(pipeline.partitions)} gives: were its blocks split from another model, or with another "
                    "--fp16?"
                )
            there |= {tensor.name for tensor in files[name].outputs}
        for output in model.outputs or [tensor.name for tensor in whole.outputs]:
            if output not in there:
                raise GenerateError(
                    f"model {model.name!r}: no partition of {list(pipeline.partitions)} gives its output {output!r}"
                )
    return model.outputs or tuple(tensor.name for tensor in whole.outputs)


def check_batches(name: str, file: OnnxFile) -> None:
    """Raise GenerateError for a partition with a tensor whose first dimension is not the batch."""
    for tensor in file.inputs + file.outputs:
        if not tensor.shape:
            raise GenerateError(f"partition {name!r}: {tensor.name!r} is a scalar, which has no rows to be batched")
        if isinstance(tensor.shape[0], int):
            raise GenerateError(
                f"partition {name!r}: the first dimension of {tensor.name!r} is fixed at {tensor.shape[0]}, so its "
                "batches could not be formed: split the model again with --batch-dim"
            )


def _missing(names: Iterable[str], file: OnnxFile) -> list[str]:
    taken = {tensor.name for tensor in file.inputs}
    return [name for name in names if name not in taken]
