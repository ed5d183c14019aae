"""Input shapes of partitions: those of requests for the first one, and the resulting ones for the others."""

from collections.abc import Mapping

import onnxruntime as ort

from tidegate.schemas import Layout, LayoutPipeline
from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.onnx_file import OnnxFile
from tidegate_repo_generator.onnx_sessions import RunError, open_session, run
from tidegate_repo_generator.rows.samples import Sampler
from tidegate_repo_generator.splitting.inputs import with_sizes
from tidegate_repo_generator.tensorrt.given_shapes import Shapes
from tidegate_repo_generator.tensorrt.sizes import sizes_of


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
                "that TensorRT has to know are not found: say others with --profile"
            ) from error
    return taken
