"""Generation of a model in a Triton model repository from an ONNX file."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from typing import Final

from tidegate_repo_generator.atomic_folder import CONFIG_FILE, check_target, write_model
from tidegate_repo_generator.config import config_text, model_config
from tidegate_repo_generator.dataflow import Dataflow
from tidegate_repo_generator.model import DeployTarget, GeneratedModel, GenerateError, Precision
from tidegate_repo_generator.onnx_file import OnnxFile, load_proto, read_onnx
from tidegate_repo_generator.onnx_sessions import RunError, open_session
from tidegate_repo_generator.rows.judgment import judge_batching
from tidegate_repo_generator.rows.samples import index_limits
from tidegate_repo_generator.source import Source, open_source
from tidegate_repo_generator.splitting.batch_dim import batch_freed
from tidegate_repo_generator.tensorrt.engine import BUILD_SCRIPT, ENGINE_FILE, PLAN_FILE, engine_of
from tidegate_triton_models import model_source

DEFAULT_MAX_BATCH: Final = 32
"""Default for `max_batch_size` in rows, for models that batch: most gain little beyond."""

_VERSION: Final = PurePosixPath("1")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_REMEDY: Final = "export the model with a dynamic first dimension in every input and output"
_FREE: Final = "free its batch of 1 with --batch-dim, or "


def generate_model(
    model: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    name: str | None = None,
    instances: int = 1,
    max_batch: int | None = None,
    batch_dim: bool = False,
    slo_ms: float | None = None,
    deploy_target: DeployTarget = DeployTarget.EMBEDDED,
    precision: Precision | None = None,
    shapes: Sequence[Mapping[str, Sequence[int]]] = (),
    real: Sequence[Path] = (),
    force: bool = False,
) -> GeneratedModel:
    """Write `<repository>/<name>/{config.pbtxt,1/...}` for an ONNX file; create the repository if it is missing.

    `name`: model name for clients; by default the file name without its suffix.
    `instances`: number of batches that Triton runs at once (per device, where it picks devices).
    `max_batch`: the largest batch, in rows. None: `DEFAULT_MAX_BATCH` if the model is shown to batch, else no batching.
    A number asserts that the model batches; it is an error if that is shown to be wrong. 0: do not batch.
    `batch_dim`: make a fixed batch of 1 dynamic first, where the graph allows.
    `slo_ms`: latency SLO in milliseconds, from a request's arrival to its answer.
    `precision`: of TensorRT's arithmetic, for the deploy targets that have it; None: FP32. `shapes`: of requests, each
    input's sizes without the rows, the usual ones first: TensorRT is prepared for the range between their extremes.
    `real`: files with representative inputs, for the trial. `force`: replace a model of that name, with all its
    versions.

    Unless `max_batch` is 0, a model whose first dimensions are all dynamic is run on the CPU, with rows alone and in
    batches, and its graph is analyzed, to see whether it batches. Raises GenerateError.
    """
    path = Path(model)
    _check_numbers(instances, max_batch, slo_ms)
    if not deploy_target.takes_precision and (precision is not None or shapes):
        raise GenerateError(
            f"--deploy-target {deploy_target.value} has no TensorRT, which alone needs --precision, --shape and "
            "--profiles: leave "
            "them out, or choose --deploy-target tensorrt or triton-tensorrt"
        )
    name = _checked_name(path) if name is None else valid_name(name)
    target = Path(repository, name)
    check_target(target, force=force)
    if batch_dim and max_batch == 0:
        raise GenerateError("--batch-dim has a model batch, and --max-batch 0 has it not: leave one of them out")
    with batch_freed(path, real) if batch_dim else nullcontext(path) as readable:
        return _generated(
            readable,
            target,
            name=name,
            instances=instances,
            max_batch=max_batch,
            slo_ms=slo_ms,
            deploy_target=deploy_target,
            precision=precision,
            shapes=shapes,
            real=real,
        )


def _generated(
    path: Path,
    target: Path,
    *,
    name: str,
    instances: int,
    max_batch: int | None,
    slo_ms: float | None,
    deploy_target: DeployTarget,
    precision: Precision | None,
    shapes: Sequence[Mapping[str, Sequence[int]]],
    real: Sequence[Path],
) -> GeneratedModel:
    """Write the model from a file in its final form."""
    onnx_file = read_onnx(path)
    proto = load_proto(path)
    limits = index_limits(Dataflow(proto))
    max_batch_size = 0
    notices: tuple[str, ...] = ()
    if max_batch != 0 or deploy_target is DeployTarget.EMBEDDED:
        source = open_source(proto, path.parent)
        if deploy_target is DeployTarget.EMBEDDED:
            _check_loads(path, source)
        max_batch_size, notices = _batching(onnx_file, source, max_batch, real)
    config = model_config(
        onnx_file,
        name=name,
        deploy_target=deploy_target,
        max_batch_size=max_batch_size,
        instances=instances,
        slo_ms=slo_ms,
        precision=precision or Precision.FP32,
        shapes=shapes,
        limits=limits,
    )
    files: dict[PurePosixPath, Path | str] = {
        PurePosixPath(CONFIG_FILE): config_text(config, source=path.name, notices=notices),
        _VERSION / "model.onnx": path,
    }
    if deploy_target is DeployTarget.EMBEDDED:
        files[_VERSION / "model.py"] = model_source("onnx_runner")
    if deploy_target is DeployTarget.TENSORRT:
        engine = engine_of(onnx_file, precision=precision or Precision.FP32, max_batch=max_batch_size, shapes=shapes)
        files[PurePosixPath(ENGINE_FILE)] = engine.text(str(_VERSION / "model.onnx"), str(_VERSION / PLAN_FILE))
        files[PurePosixPath(BUILD_SCRIPT.name)] = BUILD_SCRIPT
        build = f"python3 {target / BUILD_SCRIPT.name}"
        notices = (*notices, f"The engine is to be built on the GPU that will run it, before Triton starts: {build}.")
    for data_file in onnx_file.data_files:
        if _VERSION / data_file in files:
            raise GenerateError(
                f"{path} keeps external data in '{data_file}', where the repository has a file of that name: save the "
                "model again with another name for its data"
            )
        files[_VERSION / data_file] = path.parent / data_file
    write_model(target, files)
    return GeneratedModel(
        name=name,
        path=target,
        deploy_target=deploy_target,
        max_batch_size=max_batch_size,
        instances=instances,
        slo_ms=slo_ms,
        inputs=onnx_file.inputs,
        outputs=onnx_file.outputs,
        files=tuple(sorted(files)),
        notices=notices,
    )


def _check_numbers(instances: int, max_batch: int | None, slo_ms: float | None) -> None:
    if instances < 1:
        raise GenerateError(f"{instances} instances: a model needs at least 1")
    if max_batch is not None and not 0 <= max_batch < 2**31:
        raise GenerateError(f"a largest batch of {max_batch} rows: give 1 or more, or 0 for no batching")
    if slo_ms is not None and not (slo_ms > 0 and math.isfinite(slo_ms)):
        raise GenerateError(f"an SLO of {slo_ms} ms: give a positive number of milliseconds")


def valid_name(name: str) -> str:
    """Return `name` if it is a valid model name. Raises GenerateError otherwise."""
    if not _NAME.fullmatch(name):
        raise GenerateError(
            f"'{name}' cannot name a model: it becomes a folder and a part of addresses, so use letters, digits, '_', "
            "'-' and '.', and start with one of the first three"
        )
    return name


def _checked_name(path: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem).lstrip(".-")
    if not name:
        raise GenerateError(f"no model can be named after {path}: give it a --name")
    return name


def _check_loads(path: Path, source: Source) -> None:
    """Raise GenerateError for what onnxruntime cannot load, which runs the model in the embedded Triton, too."""
    try:
        open_session(source.proto, source.folder)
    except RunError as error:
        raise GenerateError(
            f"{path}: {error}, nor will the embedded Triton, which runs it with the same onnxruntime: export it for "
            "that version, without operators of others; or generate it for a full Triton with --deploy-target triton"
        ) from error


def _batching(
    model: OnnxFile, source: Source, max_batch: int | None, real: Sequence[Path]
) -> tuple[int, tuple[str, ...]]:
    """Decide on `max_batch_size`; with what there is to say about it."""
    if max_batch == 0:
        return 0, ()
    verdict = judge_batching(model, real, source)
    if verdict.batches:
        return (DEFAULT_MAX_BATCH if max_batch is None else max_batch), ()
    is_dynamic = all(tensor.shape and isinstance(tensor.shape[0], str) for tensor in (*model.inputs, *model.outputs))
    if verdict.batches is False and max_batch is not None:
        remedy = "" if is_dynamic else f", or {_REMEDY}"
        raise GenerateError(
            f"{model.path} cannot batch: {verdict.reason}. Leave --max-batch out to run one request at a time{remedy}"
        )
    if verdict.batches is False:
        freeable = all(tensor.shape[:1] == (1,) for tensor in model.inputs)
        remedy = "" if is_dynamic else f" To batch it, {_FREE * freeable}{_REMEDY}."
        return 0, (f"Not batched: {verdict.reason}.{remedy}",)
    if max_batch is None:
        return 0, (f"Not batched, for it is not clear that it can: {verdict.reason}. If it can, say --max-batch N.",)
    return max_batch, (f"Batched on your word: {verdict.reason}.",)
