"""Writer of a deployment: the folder that a layout describes."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnxruntime as ort

from tidegate.schemas import (
    DEPLOYMENT_FILE,
    LAYOUT_FILE,
    PROXY_FILE,
    STATE_FILE,
    Deployment,
    Layout,
    LayoutPipeline,
    read_document,
    write_document,
)
from tidegate_repo_generator.atomic_folder import replace_folder
from tidegate_repo_generator.deploying.launch import proxy_config
from tidegate_repo_generator.deploying.matching import (
    check_batches,
    differing_bytes,
    match_blocks,
    match_tensors,
)
from tidegate_repo_generator.deploying.node_files import write_node_files
from tidegate_repo_generator.deploying.places import DEFAULT_PORT, WorkerPlacement, places_of, with_nodes
from tidegate_repo_generator.deploying.repositories import WEIGHTS_FOLDER, Repositories
from tidegate_repo_generator.deploying.sources import ModelSource, Save, paths_of, source_of
from tidegate_repo_generator.model import DeployTarget, GenerateError, Precision
from tidegate_repo_generator.onnx_file import OnnxFile, read_onnx
from tidegate_repo_generator.onnx_sessions import RunError, open_session, run
from tidegate_repo_generator.rows.samples import Sampler
from tidegate_repo_generator.splitting.inputs import with_sizes
from tidegate_repo_generator.tensorrt.sizes import Shapes, shapes_measured, sizes_of

DEFAULT_POLICY: Final = "ppipe"


@dataclass(frozen=True)
class GeneratedDeployment:
    """Deployment that was written: its folder, layout and worker placements."""

    path: Path
    deployment: Deployment
    layout: Layout
    """Layout with the outputs of every model, as stored in the folder."""
    places: Mapping[str, WorkerPlacement]
    """Placements by worker name."""
    notices: tuple[str, ...]


def deploy(
    source: Path,
    output: Path,
    blocks: Mapping[str, Path],
    *,
    deploy_target: DeployTarget = DeployTarget.EMBEDDED,
    policy: str = DEFAULT_POLICY,
    nodes: Mapping[str, str] | None = None,
    hosts: Mapping[str, str] | None = None,
    port: int = DEFAULT_PORT,
    precision: Precision | None = None,
    profile: Path | None = None,
    force: bool = False,
    step: Callable[[str], None] = lambda what: None,
) -> GeneratedDeployment:
    """Write `output` from a layout and the blocks of its models.

    `source`: the layout; `policy`: name of the policy for the proxy. `blocks`: by model, a folder of `tidegate split`,
    or the ONNX file of an unsplit model; "" names the only model. `nodes`: new node names by those in the layout; ""
    names the only node. `hosts`: addresses by node, "" for all others. `port`: first port of the workers. `force`:
    replace a deployment. `precision` and `profile` (a file with request shapes) are for TensorRT; by default FP32, and
    the shapes that the models were split with. `step` is called before each model and each partition. Raises
    GenerateError, DocumentError.
    """
    target = output.absolute()
    _check_target(target, force=force)
    if not deploy_target.takes_precision and (precision is not None or profile is not None):
        raise GenerateError(
            f"--deploy-target {deploy_target.value} has no TensorRT, which alone needs --precision and --profiles: "
            "leave them out, "
            "or choose --deploy-target tensorrt or triton-tensorrt"
        )
    layout = with_nodes(read_document(source, Layout), nodes or {})
    paths = paths_of(blocks, tuple(model.name for model in layout.models), source)
    models = {model: source_of(model, path) for model, path in paths.items()}
    match_blocks(layout, source, models)
    places = places_of(layout.workers, hosts or {}, port)
    requests = _request_shapes(models, profile)
    opened = {}
    for model, path in paths.items():
        step(f"opening {path}")
        opened[model] = models[model].open()
    written: list[tuple[Deployment, Layout]] = []
    notices = differing_bytes(layout, models)

    def fill(new: Path) -> None:
        files = _extract(layout, opened, new / WEIGHTS_FOLDER, step)
        complete = _with_outputs(layout, models, files)
        shapes: dict[str, Shapes] = {}
        if deploy_target.takes_precision:
            shapes = shapes_of_partitions(complete, files, requests)
        repositories = Repositories(
            new, complete, places, files, deploy_target, precision or Precision.FP32, shapes, target
        )
        sources = {model: str(path.absolute()) for model, path in paths.items()}
        deployment = repositories.write().model_copy(update={"sources": sources})
        write_document(new / LAYOUT_FILE, complete)
        if deploy_target is not DeployTarget.EMBEDDED:
            text = (new / LAYOUT_FILE).read_text(encoding="utf-8")
            notices.extend(write_node_files(new, complete, places, deploy_target, policy, text))
        write_document(new / DEPLOYMENT_FILE, deployment)
        (new / PROXY_FILE).write_text(proxy_config(places, policy), encoding="utf-8")
        written.append((deployment, complete))

    replace_folder(target, fill, in_repository=False)
    ((deployment, complete),) = written
    return GeneratedDeployment(output, deployment, complete, places, tuple(notices))


def _check_target(target: Path, *, force: bool) -> None:
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / DEPLOYMENT_FILE).is_file():
        raise GenerateError(
            f"{target} exists and was not written by `tidegate generate` (it has no {DEPLOYMENT_FILE}): remove it "
            "yourself, or choose another --output"
        )
    if (target / STATE_FILE).exists():
        raise GenerateError(f"{target} is in use: `tidegate down {target}` first, or choose another --output")
    if not force:
        raise GenerateError(f"{target} exists: replace it with --force, or choose another --output")


def _extract(
    layout: Layout, opened: Mapping[str, Save], folder: Path, step: Callable[[str], None]
) -> dict[str, OnnxFile]:
    """The ONNX file of every partition, by its name; one file for those of the same blocks."""
    folder.mkdir()
    files: dict[Path, OnnxFile] = {}
    of: dict[str, OnnxFile] = {}
    for part in layout.partitions:
        step(f"extracting {part.name}")
        path = folder / f"{part.model}.{part.blocks[0]}-{part.blocks[1]}.onnx"
        if path not in files:
            opened[part.model](*part.blocks, path)
            files[path] = read_onnx(path)
        of[part.name] = files[path]
        check_batches(part.name, of[part.name])
    return of


def _with_outputs(layout: Layout, sources: Mapping[str, ModelSource], files: Mapping[str, OnnxFile]) -> Layout:
    """The layout, after a look at its partitions; every model says its outputs, which partitions alone do not tell."""
    models = []
    for model in layout.models:
        outputs = match_tensors(model, sources[model.name].whole(), files)
        models.append(model.model_copy(update={"outputs": outputs}))
    return layout.model_copy(update={"models": tuple(models)})


def _request_shapes(models: Mapping[str, ModelSource], profile: Path | None) -> dict[str, Shapes]:
    """The shapes of every model's requests: as measured, else those with which it was split."""
    if profile is not None:
        return {name: shapes_measured(profile, name) for name in models}
    return {name: model.shapes for name, model in models.items()}


def shapes_of_partitions(
    layout: Layout, files: Mapping[str, OnnxFile], requests: Mapping[str, Shapes]
) -> dict[str, Shapes]:
    """Return the shapes of every partition, without the rows, in the order of its model's `requests`.

    Shapes between partitions that no file declares are found by running the partitions on one row. Raises
    GenerateError.
    """
    met: dict[str, list[dict[str, tuple[int, ...]]]] = {name: [] for name in files}
    sessions: dict[str, ort.InferenceSession] = {}
    for model in layout.models:
        for pipeline in model.pipelines:
            first = files[pipeline.partitions[0]]
            sizes_of(first, pipeline.batch, requests[model.name])
            met[pipeline.partitions[0]] += requests[model.name]
            if not any(_is_open(files[name]) for name in pipeline.partitions[1:]):
                continue
            for name in pipeline.partitions:
                sessions.setdefault(name, open_session(files[name].path, files[name].path.parent))
            for shape in requests[model.name]:
                for name, taken in _run(pipeline, files, sessions, shape).items():
                    met[name].append(taken)
    return {name: tuple(shapes) for name, shapes in met.items()}


def _is_open(file: OnnxFile) -> bool:
    return any(isinstance(size, str) for tensor in file.inputs for size in tensor.shape[1:])


def _run(
    pipeline: LayoutPipeline,
    files: Mapping[str, OnnxFile],
    sessions: Mapping[str, ort.InferenceSession],
    shape: Mapping[str, tuple[int, ...]],
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the inputs of each partition after the first for one row of this shape."""
    feed = Sampler(with_sizes(files[pipeline.partitions[0]].inputs, shape), 1).rows(1)
    taken = {}
    for number, name in enumerate(pipeline.partitions):
        if number:
            taken[name] = {tensor.name: feed[tensor.name].shape[1:] for tensor in files[name].inputs}
        try:
            feed |= run(sessions[name], feed)
        except RunError as error:
            raise GenerateError(
                f"partition {name!r} does not run on a request of {dict(shape)} ({error}), so the sizes "
                "that TensorRT has to know are not found: say others with --profiles"
            ) from error
    return taken
