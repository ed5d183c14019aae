"""A scenario with split models, or with several kinds of GPU, as a deployment: a layout, and a Triton for each worker.

Partitions take the time of their profiles on the worker's kind of GPU, and hand on as many bytes as the scenario says.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate.api import NS_PER_MS
from tidegate.documents import (
    DEPLOYMENT_FILE,
    LAYOUT_FILE,
    PROXY_FILE,
    DeployedPartition,
    DeployedWorker,
    Deployment,
    Layout,
    LayoutModel,
    LayoutNetwork,
    LayoutPartition,
    LayoutPipeline,
    LayoutWorker,
    write_document,
)
from tidegate.sim.build import setup_of
from tidegate.workload import PolicyChoice, Scenario
from tidegate.workload.scenario import WorkerSpec
from tidegate_loadtest.connection import LoadTestError
from tidegate_triton_models import model_source

MOST_TRITONS: Final = 32
"""Each is a server of its own, with a process for each model."""
_INPUT_FLOATS: Final = 8
_ANSWER_BYTES: Final = 32
_FIRST_PORT: Final = 20_000
"""A configuration has to name some; it is started on free ones."""


@dataclass(frozen=True)
class _Step:
    """A partition's place in its pipeline, the same wherever it is used."""

    number: int
    last: bool
    bytes_in: int
    """Per row, from the partition before it; meaningless for the first one."""


def needs_layout(scenario: Scenario) -> bool:
    """Whether one Triton for each entry of `workers` will not do."""
    return any(model.pipelines for model in scenario.models) or len({pool.gpu for pool in scenario.workers}) > 1


def check_layout_can_be_emulated(scenario: Scenario) -> None:
    """Raises LoadTestError naming the field, and the remedy."""
    workers = sum(pool.count for pool in scenario.workers)
    if workers > MOST_TRITONS:
        raise LoadTestError(
            f"workers: {workers}, and with split models or several kinds of `gpu` each is a Triton of its own: emulate "
            f"at most {MOST_TRITONS}"
        )
    _steps(scenario)


def layout_of(scenario: Scenario, seed: int) -> Layout:
    """The scenario's workers, and its models as partitions; a model that is not split is one of its own name."""
    setup = setup_of(scenario, seed)
    latencies: dict[str, dict[str, tuple[float, ...]]] = {}
    for profile in setup.profiles:
        table = tuple(ns / NS_PER_MS for ns in profile.expected)
        latencies.setdefault(profile.partition, {})[profile.kind] = table
    steps = _steps(scenario)
    network = scenario.network
    return Layout(
        models=tuple(
            LayoutModel(name=model.name, slo_ms=model.slo_ms, pipelines=tuple(pipelines))
            for model, pipelines in zip(scenario.models, _pipelines(scenario), strict=True)
        ),
        partitions=tuple(
            LayoutPartition(
                name=name,
                model=model.name,
                blocks=(steps[name].number, steps[name].number + 1),
                bytes_per_row=0 if steps[name].last else _bytes_out(scenario, name),
                latency_ms=latencies[name],
            )
            for model in scenario.models
            for name in model.partitions
        ),
        workers=tuple(
            LayoutWorker(
                name=worker.name,
                kind=worker.kind,
                gpu=gpu,
                share=min(100, pool.per_gpu),
                node=worker.node,
                hosts=worker.hosts,
            )
            for worker, (pool, gpu) in zip(setup.workers, _placed(scenario), strict=True)
        ),
        network=None if network is None else LayoutNetwork(gbps=network.gbps, latency_ms=network.latency_ms),
    )


def write_emulated_deployment(folder: Path, scenario: Scenario, choice: PolicyChoice, seed: int, record: Path) -> None:
    """Write what `tidegate up` starts: a repository for each worker, and the proxy with the policy, recording."""
    layout = layout_of(scenario, seed)
    folder.mkdir()
    write_document(folder / LAYOUT_FILE, layout)
    workers = []
    for number, worker in enumerate(layout.workers):
        repository = folder / str(number)
        for name in worker.hosts:
            _write_partition(repository, scenario, name, worker.kind, seed=seed * MOST_TRITONS + number)
        workers.append(
            DeployedWorker(
                name=worker.name,
                repository=str(number),
                launch=f"{number}.sh",
                node=worker.node,
                gpu=worker.gpu,
                share=worker.share,
                hosts=worker.hosts,
            )
        )
    partitions = tuple(
        DeployedPartition(
            name=part.name, model=part.model, blocks=part.blocks, file=f"{part.name}.onnx", inputs=(), outputs=()
        )
        for part in layout.partitions
    )
    write_document(
        folder / DEPLOYMENT_FILE, Deployment(flavour="embedded", partitions=partitions, workers=tuple(workers))
    )
    config = {
        "layout": LAYOUT_FILE,
        "policy": {"name": choice.name, "options": choice.options},
        "seed": seed,
        "record": str(record.absolute()),
        "wait_s": 60,
        "tritons": [
            {"worker": worker.name, "grpc": f"127.0.0.1:{_FIRST_PORT + number}"}
            for number, worker in enumerate(layout.workers)
        ],
    }
    (folder / PROXY_FILE).write_text(json.dumps(config, indent=2), encoding="utf-8")


def _write_partition(repository: Path, scenario: Scenario, name: str, kind: str, *, seed: int) -> None:
    """A model that takes the partition's time, whatever comes in, and gives the bytes that it sends."""
    step, (_, max_rows) = _steps(scenario)[name], scenario.partitions[name]
    config = model_config_pb2.ModelConfig(name=name, backend="python", max_batch_size=max_rows)
    config.instance_group.add(count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    warmup = config.model_warmup.add(name="first", batch_size=1, count=2)  # the first executions are slow
    if step.number == 0:
        config.input.add(name="INPUT0", data_type=model_config_pb2.TYPE_FP32, dims=[_INPUT_FLOATS])
    else:
        config.input.add(name=f"STEP{step.number}", data_type=model_config_pb2.TYPE_UINT8, dims=[-1])
    taken = warmup.inputs[config.input[0].name]
    taken.data_type, taken.zero_data = config.input[0].data_type, True
    taken.dims.append(step.bytes_in if step.number else _INPUT_FLOATS)
    given = "OUTPUT0" if step.last else f"STEP{step.number + 1}"
    config.output.add(name=given, data_type=model_config_pb2.TYPE_UINT8, dims=[-1])
    sent = _ANSWER_BYTES if step.last else _bytes_out(scenario, name)
    times_ms = {rows: ns / NS_PER_MS for rows, ns in enumerate(true_times_ns(scenario, name, kind), 1)}
    model = next(model for model in scenario.models if name in model.partitions)
    parameters = {"table_ms": json.dumps(times_ms), "output_bytes": str(sent), "tidegate_batch": model.batch}
    if jitter := scenario.simulation.jitter:
        parameters |= {"jitter": str(jitter.cv), "jitter_kind": jitter.distribution, "seed": str(seed)}
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config), encoding="utf-8")
    copyfile(model_source("emulated_gpu"), version / "model.py")


def true_times_ns(scenario: Scenario, partition: str, kind: str) -> tuple[int, ...]:
    """How long batches of 1, 2, ... rows really take on a kind of GPU, as simulated workers do."""
    service = scenario.simulation.service.get(partition)
    part, max_rows = scenario.partitions[partition]
    spec = (service and service.profile_on(kind)) or part.profile_on(kind)
    assert spec is not None, "checked when the scenario was read"
    return spec.build(partition, kind, max_rows).expected


def _pipelines(scenario: Scenario) -> Iterator[list[LayoutPipeline]]:
    """Of each model."""
    for model in scenario.models:
        if not model.pipelines:
            yield [LayoutPipeline(partitions=(model.name,), batch=model.max_rows)]
        else:
            yield [
                LayoutPipeline(partitions=tuple(part.name for part in pipeline.partitions), batch=pipeline.batch)
                for pipeline in model.pipelines
            ]


def _steps(scenario: Scenario) -> dict[str, _Step]:
    """The place of every partition. Raises LoadTestError for one that stands at two."""
    steps: dict[str, _Step] = {}
    for pipelines in _pipelines(scenario):
        for pipeline in pipelines:
            bytes_in = 0
            for number, name in enumerate(pipeline.partitions):
                last = number == len(pipeline.partitions) - 1
                step = steps.setdefault(name, _Step(number, last, bytes_in))
                if (step.number, step.last) != (number, last):
                    raise LoadTestError(
                        f"models: partition {name!r} stands at different places of two pipelines: emulated GPUs need "
                        "one of another name for each"
                    )
                bytes_in = _bytes_out(scenario, name)
    return steps


def _bytes_out(scenario: Scenario, name: str) -> int:
    return max(1, scenario.partitions[name][0].output_bytes)


def _placed(scenario: Scenario) -> Iterator[tuple[WorkerSpec, str]]:
    """Every worker's entry, and its GPU."""
    for entry, pool in enumerate(scenario.workers):
        for number in range(pool.count):
            yield pool, f"{entry}/{number // pool.per_gpu}"
