"""Splitting of an ONNX file into a folder of blocks: cut, verify, then write atomically."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx

from tidegate.schemas import write_document
from tidegate_repo_generator.atomic_folder import replace_folder
from tidegate_repo_generator.dataflow import SplitError, errors_of
from tidegate_repo_generator.onnx_file import read_onnx
from tidegate_repo_generator.onnx_sessions import Arrays
from tidegate_repo_generator.rows.judgment import judge_rows
from tidegate_repo_generator.source import Source
from tidegate_repo_generator.splitting.blocks import Blocks, open_model
from tidegate_repo_generator.splitting.cutting import Cutter
from tidegate_repo_generator.splitting.inputs import Shapes
from tidegate_repo_generator.splitting.manifest import FILE_NAME, WHOLE_NAME, Block, Manifest, Verification
from tidegate_repo_generator.splitting.run_times import data_times, equal_cuts, measure_nodes, times_from_profile
from tidegate_repo_generator.splitting.verification import (
    RELATIVE_TOLERANCE,
    VERIFIED_ROWS,
    Reference,
    compose,
    reference,
)

Step = Callable[[str], None]
"""Progress callback, called with a description of the current step."""


def split_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    blocks: int = 10,
    slack: float = 0.05,
    at: Sequence[str] = (),
    profile: Path | None = None,
    shapes: Shapes | None = None,
    fp16: bool = False,
    batch_dim: bool = False,
    real: Sequence[Path] = (),
    independent_rows: bool = False,
    force: bool = False,
    step: Step = lambda _: None,
) -> Manifest:
    """Cut a model into blocks of about equal run time, and write them and their manifest into a new folder.

    `slack`: fraction of a block's run time by which a cut may move to where fewer bytes cross. `at`: cut after the
    nodes that make these tensors instead. `profile`: profile of onnxruntime, for the run times; by default the model is
    profiled here.
    `shapes`: sizes of inputs with dynamic dimensions, for run times and bytes per row. `fp16`: send float32 as float16.
    `batch_dim`: make a fixed batch of 1 symbolic first. `real`: files with representative inputs. `independent_rows`:
    accept that rows are independent where neither graph nor trial proves it. `force`: replace existing blocks.

    Rows meet other rows from block to block, so they must be independent. The chained blocks are compared with the
    model before anything is written. Raises SplitError, or GenerateError if the file is no model.
    """
    path, target = Path(model), Path(output)
    with errors_of(path):
        _check_target(target, force=force)
        if not 0 <= slack <= 1:
            raise SplitError(f"a slack of {slack}: give a share of a block's run time, 0 to 1")
        if not at and blocks < 1:
            raise SplitError(f"{blocks} blocks: give at least 1")
        step("analysing")
        cutter, inputs, source = open_model(path, shapes or {}, batch_dim=batch_dim, real=real)
        sampler = cutter.probe.sampler
        verdict = judge_rows(source.proto, source.folder, inputs, sampler.given, read_onnx(path).inputs)
        if verdict.batches is False or (verdict.batches is None and not independent_rows):
            remedy = "" if verdict.batches is False else "; if they are, say --independent-rows"
            raise SplitError(
                f"{path} cannot be split, for its rows are not shown to be independent: {verdict.reason}{remedy}"
            )
        one_row = sampler.rows(1)
        positions, times_us = _positions(cutter, source, one_row, (blocks, slack), at, profile, step)
        cut = Blocks(cutter, source, positions)
        step("running the model")
        expected = reference(cutter.flow, source.folder, sampler, frozenset().union(*cut.crossings))
        plain = _verified(cut, expected, step)
        halved: float | None = None
        if fp16:
            cut = Blocks(cutter, source, positions, fp16=True)
            halved = _composed(cut, expected, step)
        sizes = {name: list(array.shape[1:]) for name, array in one_row.items()}
        described = _describe(cut, times_us)
        _check_ends(cut, described)
        manifest = Manifest(
            model=path.stem,
            fp16=fp16,
            shapes=sizes,
            cuts=positions,
            crossings=[cut.crossing_tensors(number) for number in range(len(positions))],
            blocks=described,
            verification=Verification(rows=VERIFIED_ROWS, max_difference=plain, fp16_max_difference=halved),
        )
        _write(target, cut, manifest, step)
        return manifest


def _positions(
    cutter: Cutter,
    source: Source,
    feed: Arrays,
    wanted: tuple[int, float],
    at: Sequence[str],
    profile: Path | None,
    step: Step,
) -> tuple[list[int], list[float] | None]:
    """The cuts, and the microseconds of each node on data where these were found out; `wanted`: blocks and slack."""
    if at:
        positions = sorted({cutter.position_after(tensor) for tensor in at})
        if positions[-1] == cutter.end:
            raise SplitError(f"nothing comes after the cut {cutter.where(cutter.end)}: leave it out")
        for position in positions:
            cutter.crossing(position)
        return positions, None
    if profile is not None:
        times = times_from_profile(cutter.flow, profile)
    else:
        times = measure_nodes(cutter.flow, source.folder, feed, lambda: step("profiling"))
    times_us = data_times(cutter.flow, times)
    return equal_cuts(cutter, times_us, *wanted), times_us


def _check_ends(cut: Blocks, blocks: list[Block]) -> None:
    """Make sure that the blocks together take what the model takes, and give what it gives."""
    flow = cut.cutter.flow
    made = {name for block in blocks for name in block.outputs}
    taken = {name for block in blocks for name in block.inputs} - (made - set(flow.inputs))
    for what, ours, whole in (("take", taken, set(flow.inputs)), ("give", made & set(flow.outputs), set(flow.outputs))):
        if ours != whole:
            raise SplitError(
                f"the blocks together do not {what} {', '.join(sorted(ours ^ whole))} as the model does: cut elsewhere"
            )


def _composed(cut: Blocks, expected: Reference, step: Step) -> float:
    models = (cut.model(number, number + 1) for number in range(len(cut.spans)))
    return compose(models, cut.source.folder, expected, lambda: step("verifying"))


def _verified(cut: Blocks, expected: Reference, step: Step) -> float:
    worst = _composed(cut, expected, step)
    if worst > RELATIVE_TOLERANCE:
        raise SplitError(
            f"the blocks in a row differ from the model by {worst:.2g} of the largest output, "
            f"more than {RELATIVE_TOLERANCE:g}: "
            "nothing was written; cut elsewhere"
        )
    return worst


def _describe(cut: Blocks, times_us: list[float] | None) -> list[Block]:
    described = []
    for number, (start, stop) in enumerate(cut.spans):
        model = cut.model(number, number + 1)
        weights = {tensor.name for tensor in model.graph.initializer}
        described.append(
            Block(
                name=f"{number:02}",
                file=f"{number:02}.onnx",
                nodes=cut.node_names(number),
                inputs=[value.name for value in model.graph.input if value.name not in weights],
                outputs=[value.name for value in model.graph.output],
                run_time_us=None if times_us is None else round(sum(times_us[start:stop]), 1),
                weight_bytes=cut.weight_bytes(number),
            )
        )
    return described


def _check_target(target: Path, *, force: bool) -> None:
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / FILE_NAME).is_file():
        raise SplitError(f"{target} exists and holds no blocks (it has no {FILE_NAME}): choose another --output")
    if not force:
        raise SplitError(f"{target} exists: replace it with --force, or choose another --output")


def _write(target: Path, cut: Blocks, manifest: Manifest, step: Step) -> None:
    def fill(new: Path) -> None:
        for number, block in enumerate(manifest.blocks):
            cut.save(number, number + 1, new / block.file)
            step("writing")
        whole = onnx.ModelProto()
        whole.CopyFrom(cut.cutter.flow.proto)
        cut.source.save(whole, new / WHOLE_NAME)
        write_document(new / FILE_NAME, manifest)

    replace_folder(target, fill, in_repository=False)
