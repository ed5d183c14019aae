"""Verdict on whether requests of a model may share a batch, from its declaration, its graph and a trial.

Requests are batched only if the trial gives evidence and the graph shows no mixing. In doubt a model runs its requests
alone, and the reason is reported.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidegate_repo_generator.dataflow import Dataflow, Nature
from tidegate_repo_generator.model import Tensor
from tidegate_repo_generator.onnx_file import OnnxFile, load_proto
from tidegate_repo_generator.onnx_sessions import Arrays, RunError, open_session, run
from tidegate_repo_generator.rows.axes import ANALYZED_ROWS
from tidegate_repo_generator.rows.batch_dim_probe import BatchingVerdict, try_rows
from tidegate_repo_generator.rows.examination import Finding, examine_graph
from tidegate_repo_generator.rows.samples import Sampler, find_other_sampler, find_samplers, index_limits, read_rows
from tidegate_repo_generator.source import Source, open_source


def judge_batching(model: OnnxFile, real: Iterable[Path] = (), source: Source | None = None) -> BatchingVerdict:
    """Decide whether requests to a model may share a batch, by its graph and by trial runs.

    `model`: the file; `source`: the same model, if it is open already. `real`: files with rows of representative
    inputs. Raises GenerateError if these do not fit.

    Names of dimensions prove nothing: some exporters give every dynamic dimension a name of its own, some none, and a
    dynamic first dimension may also count detections, or steps in time.
    """
    real = list(real)
    given = read_rows(real, model.inputs) if real else None
    tensors = [("input", tensor) for tensor in model.inputs] + [("output", tensor) for tensor in model.outputs]
    for kind, tensor in tensors:
        obstacle = _fixed(kind, tensor) or _elsewhere(
            kind, tensor, str(model.inputs[0].shape[0] if model.inputs[0].shape else "")
        )
        if obstacle:
            return BatchingVerdict(False, obstacle)
    if any(tensor.data_type == "BF16" for tensor in model.inputs + model.outputs):
        return BatchingVerdict(None, "a model with BF16 inputs or outputs cannot be tried here")
    source = source or open_source(load_proto(model.path), model.path.parent)
    verdict = judge_rows(source.proto, source.folder, model.inputs, given)
    if verdict.batches is False:
        return verdict
    names = sorted({str(tensor.shape[0]) for tensor in model.inputs} - {""})
    if len(names) > 1:
        return BatchingVerdict(None, f"the first dimensions of the inputs have different names: {', '.join(names)}")
    return verdict


def judge_rows(
    proto: Any,  # noqa: ANN401
    folder: Path,
    inputs: tuple[Tensor, ...],
    given: Arrays | None = None,
    declared: tuple[Tensor, ...] | None = None,
) -> BatchingVerdict:
    """Judge a model whose inputs all have the rows first. `folder`: folder of its external weights.

    `proto`: the model. `declared`: the inputs as the model declares them, if `inputs` have sizes that the user gave.
    A model with dynamic dimensions is judged at two sizes; if rows are `given`, at the second one only by its graph.
    """
    try:
        session = open_session(proto, folder)
        flow = Dataflow(proto)
        limits = index_limits(flow)
        sampler = find_samplers(session, inputs, limits, given=given)[0]
        other = find_other_sampler(session, declared or inputs, limits, sampler)
    except RunError as error:
        return BatchingVerdict(None, str(error))
    finding = _examined(proto, folder, sampler)
    outputs = [name for name in flow.outputs if flow.nature_of(name) is Nature.DATA]
    if not outputs:
        return BatchingVerdict(None, "no output depends on what the inputs contain")
    verdict = _tried(session, sampler, outputs)
    if verdict.batches and finding.verdict == "independent" and other:
        shapes = ", ".join(f"'{name}' of {list(array.shape[1:])}" for name, array in other.rows(1).items())
        finding = _examined(proto, folder, other)
        again = verdict if given else _tried(session, other, outputs)  # random rows do not overrule given ones
        if again.batches is False or finding.verdict != "independent":
            reason = finding.reason or again.reason
            return BatchingVerdict(False if again.batches is False else None, f"{reason} (with rows of {shapes})")
    if finding.verdict == "independent":
        return verdict
    if finding.verdict == "mixes":
        return BatchingVerdict(None if verdict.batches else verdict.batches, finding.reason)
    return BatchingVerdict(None, finding.reason) if verdict.batches else verdict


def _tried(session: Any, sampler: Sampler, outputs: list[str]) -> BatchingVerdict:  # noqa: ANN401
    return try_rows(lambda feed: run(session, feed), lambda feed: run(session, feed), sampler, outputs)


def _examined(proto: Any, folder: Path, sampler: Sampler) -> Finding:  # noqa: ANN401
    try:
        return examine_graph(proto, folder, [sampler.rows(count) for count in ANALYZED_ROWS])
    except RunError as error:
        return Finding("unknown", f"its graph cannot be followed ({error})")


def _fixed(kind: str, tensor: Tensor) -> str | None:
    if not tensor.shape:
        return f"{kind} '{tensor.name}' is a scalar, which has no rows"
    if isinstance(tensor.shape[0], str):
        return None
    return f"the first dimension of {kind} '{tensor.name}' is fixed at {tensor.shape[0]}"


def _elsewhere(kind: str, tensor: Tensor, first: str) -> str | None:
    """Find the batch in another place: its name in the middle of a shape, or in both places (a square matrix)."""
    for position, name in enumerate(tensor.shape[1:], start=1):
        if not isinstance(name, str) or not name:
            continue
        if name == first or ("batch" in name.lower() and "batch" not in str(tensor.shape[0]).lower()):
            return f"'{name}' is dimension {position} of {kind} '{tensor.name}', and a batch's must be the first"
    return None
