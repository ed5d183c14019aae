"""Profiling of several models, one after the other: which are to be measured, which failed, which are known already."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from tidegate.schemas import Hardware, ModelProfile
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.input_files import Tensors
from tidegate_loadtest.profiler import files_by_shape, measure_profiles, shapes_to_measure, sizes_to_measure
from tidegate_loadtest.requested_shapes import Dimensions, RequestedShape

Asked = Callable[[str, bool], Sequence[RequestedShape]]
"""Function that returns the requested shapes of a model, given (name, whether its config has dynamic dimensions).

May raise LoadTestError.
"""


@dataclass(frozen=True)
class ModelProfiling:
    """Model that is to be measured."""

    model: str
    sizes: Sequence[int]
    """Batch sizes in rows."""
    shapes: Mapping[str, Dimensions]
    """Dimensions of each input, by shape text."""
    on_gpu: bool = False
    """Whether its server runs it on GPUs."""
    files: Mapping[str, Sequence[Tensors]] = field(default_factory=dict)
    """Real inputs by the shape text of their requests; empty: tensors are random."""

    def requests(self, samples: int) -> int:
        """Return the number of requests to measure."""
        return len(self.sizes) * len(self.shapes) * samples

    def is_known(
        self, profiles: Collection[ModelProfile], device_class: str, samples: int, hardware: Hardware | None
    ) -> bool:
        """Return whether these profiles already cover all measurements of this model, on the same hardware.

        `samples`: requests per measurement.
        """
        known = {
            profile.shape: {point.rows for point in profile.points if point.samples >= samples}
            for profile in profiles
            if (profile.model, profile.device_class, profile.hardware) == (self.model, device_class, hardware)
        }
        return all(known.get(shape, set()).issuperset(self.sizes) for shape in self.shapes)


@dataclass
class ProfilingRun:
    """Profiling of several models: the measurements to make, and the results."""

    jobs: list[ModelProfiling] = field(default_factory=list)
    """Models to measure, in this order."""
    known: list[str] = field(default_factory=list)
    """Models that had been measured before."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Models that cannot be measured and were not requested by name, with the reason."""
    failed: dict[str, str] = field(default_factory=dict)
    """Models that should have been measured and were not, with the reason."""
    measured: list[ModelProfile] = field(default_factory=list)


@dataclass(frozen=True)
class InputFolders:
    """Folders with real inputs, by model."""

    folders: Mapping[str, Path] = field(default_factory=dict)
    max_shapes: int = 8
    """Largest number of shapes to measure per folder: the most frequent ones."""


async def plan_campaign(
    campaign: ProfilingRun,
    connection: Connection,
    models: Sequence[str],
    asked: Asked,
    sizes: Sequence[int] | None,
    inputs: InputFolders = InputFolders(),
) -> None:
    """Add the measurement of these models, or of all that can be measured if there are none. Raises LoadTestError.

    `asked`: returns the requested shapes; `sizes`: batch sizes in rows, or None; `inputs`: folders of real inputs.
    """
    for model in models or await connection.ready_models():
        if not models and (why := why_not_measurable(await connection.model_config(model))):
            campaign.left_out[model] = why
            continue
        try:
            campaign.jobs.append(await _job(connection, model, asked, sizes, inputs, alone=len(models) == 1))
        except LoadTestError as error:
            campaign.failed[model] = str(error)


async def _job(
    connection: Connection,
    model: str,
    asked: Asked,
    sizes: Sequence[int] | None,
    inputs: InputFolders,
    *,
    alone: bool,
) -> ModelProfiling:
    config = await connection.model_config(model)
    if sizes and not alone:  # those of several models need not suit each of them
        sizes = [rows for rows in sizes if rows <= config.max_batch_size]
    rows = await sizes_to_measure(connection, model, sizes)
    declared = (await connection.model_metadata(model)).inputs
    is_open = any(size < 0 for tensor in declared for size in tensor.shape[1:])
    wanted = asked(model, is_open)
    if folder := inputs.folders.get(model):
        return await _job_of_files(connection, model, rows, wanted, folder, inputs.max_shapes)
    shapes = await shapes_to_measure(connection, model, wanted)
    dimensions = {text: each.dimensions for text, each in shapes.items()}
    return ModelProfiling(model, rows, dimensions, runs_on_gpu(config))


async def _job_of_files(
    connection: Connection, model: str, rows: list[int], asked: Sequence[RequestedShape], folder: Path, max_shapes: int
) -> ModelProfiling:
    """Measure the shapes that a folder's files have; of these the asked ones, if any are."""
    files = await files_by_shape(connection, model, folder)
    wanted = await shapes_to_measure(connection, model, asked) if asked else list(islice(files, max_shapes))
    if missing := [text for text in wanted if text not in files]:
        raise LoadTestError(
            f"--inputs {model}={folder}: no file has the shape {missing[0]}; they have {', '.join(files)}"
        )
    used = {text: files[text] for text in wanted}
    dimensions = {text: {name: array.shape for name, array in own[0].items()} for text, own in used.items()}
    return ModelProfiling(model, rows, dimensions, runs_on_gpu(await connection.model_config(model)), used)


def skip_known(
    campaign: ProfilingRun,
    profiles: Collection[ModelProfile],
    device_class: str,
    samples: int,
    hardware: Hardware | None,
) -> None:
    """Remove measurements that an earlier run has done.

    `profiles`: earlier results, which count if device class, `samples` and `hardware` are equal.
    """
    campaign.known = [job.model for job in campaign.jobs if job.is_known(profiles, device_class, samples, hardware)]
    campaign.jobs = [job for job in campaign.jobs if job.model not in campaign.known]


async def carry_out(
    connection: Connection,
    campaign: ProfilingRun,
    *,
    samples: int,
    device_class: str,
    hardware: Hardware | None,
    keep: Callable[[ModelProfiling, list[ModelProfile]], None],
    progress: Callable[[ModelProfiling, int, str], None],
) -> None:
    """Measure one model after the other; a failing one does not stop the others, but a lost server does.

    `samples`: measurements of each batch size. `keep` is called with the profiles of a model, `progress` with (job, its
    requests so far, name of the current measurement). Raises LoadTestError if the server becomes unreachable, and what
    `keep` raises.
    """
    for job in campaign.jobs:

        def advance(done: int, what: str, job: ModelProfiling = job) -> None:
            progress(job, done, what)

        try:
            measured = await measure_profiles(
                connection,
                job.model,
                job.sizes,
                list(job.shapes.values()),
                samples=samples,
                files=job.files,
                device_class=device_class,
                progress=advance,
            )
        except LoadTestError as error:
            campaign.failed[job.model] = str(error)
            await connection.require_live()
            continue
        measured = [profile.model_copy(update={"hardware": hardware}) for profile in measured]
        campaign.measured += measured
        keep(job, measured)


def why_not_measurable(config: model_config_pb2.ModelConfig) -> str:
    """Explain why Tidegate would bypass a model's requests despite any profile; "" if it can schedule them."""
    if config.max_batch_size < 1:
        return "max_batch_size 0: it has no rows to measure latency against"
    if config.HasField("ensemble_scheduling"):
        return "an ensemble: Triton schedules its steps"
    if config.HasField("sequence_batching"):
        return "sequence_batching: its requests depend on those before them"
    if config.model_transaction_policy.decoupled:
        return "decoupled: a request may have any number of responses"
    if config.batch_input or config.batch_output or any(tensor.is_shape_tensor for tensor in config.input):
        return "only Triton can form its batches"
    return ""


_HERE = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_here(target: str) -> bool:
    """Return whether HOST:PORT is this machine, so that its hardware is that of the server."""
    return target.rpartition(":")[0] in _HERE


def runs_on_gpu(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether a Triton runs instances of a model on GPUs, by the config that it reports."""
    return any(group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def why_gpus_are_unknown(on_gpu: Sequence[str]) -> str:
    """Explain why the GPUs of these models are unknown, with the remedy; "" if they are known or there are none."""
    if not on_gpu or find_spec("pynvml") is not None:
        return ""
    return (
        f"which GPU {', '.join(on_gpu)} ran on is not recorded, as nvidia-ml-py is not installed: "
        'pip install "tidegate-loadtest[nvml]", and measure again'
    )
