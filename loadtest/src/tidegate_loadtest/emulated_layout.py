"""Emulated deployment for scenarios with split models or several device classes: a layout, and one Triton per worker.

Partitions have the latency of their profiles on the worker's device class, and pass on as many bytes as the scenario
says.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate.api import NS_PER_MS, Profile
from tidegate.host import Plugins
from tidegate.schemas import (
    DEPLOYMENT_FILE,
    INTERFERENCE_FILE,
    LAYOUT_FILE,
    NEIGHBORS_PARAMETER,
    PROXY_FILE,
    DeployedPartition,
    DeployedWorker,
    Deployment,
    InterferenceModel,
    Layout,
    LayoutPartition,
    neighbors_parameter,
    write_document,
)
from tidegate.sim.build import true_profiles
from tidegate.workload import PolicyChoice, Scenario, layout_of
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.tenant_headers import tenant_sections
from tidegate_triton_models import model_source

MAX_TRITONS: Final = 32
"""Largest number of Tritons; each is a server with a process for each model."""
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
    """Return whether the scenario needs one Triton per worker instead of one per entry of `workers`."""
    return is_laid_out(scenario) or len({pool.device_class for pool in scenario.workers}) > 1


def is_laid_out(scenario: Scenario) -> bool:
    """Return whether Triton alone cannot run the scenario: split models, shared GPUs, or a controller."""
    if scenario.layout is not None or any(model.pipelines for model in scenario.models):
        return True
    return isinstance(scenario.simulation.interference, InterferenceModel) or scenario.controller is not None


def check_layout_can_be_emulated(scenario: Scenario) -> None:
    """Check that the layout can be emulated. Raises LoadTestError with the field and the remedy."""
    layout = layout_of(scenario)
    if len(layout.workers) > MAX_TRITONS:
        raise LoadTestError(
            f"workers: {len(layout.workers)}, and with split models or several device classes each worker is a Triton "
            f"of its own: emulate at most {MAX_TRITONS}"
        )
    _steps(layout)


def write_emulated_deployment(folder: Path, scenario: Scenario, choice: PolicyChoice, seed: int, record: Path) -> None:
    """Write the deployment for `tidegate up`: a repository per worker, and the proxy with the policy and event log.

    `record`: path of the event log; `seed`: seed of the random variation of latencies.
    """
    layout = layout_of(scenario)
    steps, times = _steps(layout), true_times(scenario)
    parts = {part.name: part for part in layout.partitions}
    folder.mkdir()
    write_document(folder / LAYOUT_FILE, layout)
    interference = scenario.simulation.interference
    if isinstance(interference, InterferenceModel):
        write_document(folder / INTERFERENCE_FILE, interference)
    workers = []
    for number, worker in enumerate(layout.workers):
        repository = folder / str(number)
        for name in worker.hosts:
            config = _config_of(parts[name], steps[name], times[name, worker.speed])
            _set_parameters(config, scenario, parts[name].model, seed=seed * MAX_TRITONS + number)
            if isinstance(interference, InterferenceModel):
                config.parameters[NEIGHBORS_PARAMETER].string_value = neighbors_parameter(
                    interference, folder, worker.device, worker.slice, name, config.max_batch_size
                )
            _write_model(repository / name, config)
        workers.append(
            DeployedWorker(
                name=worker.name,
                repository=str(number),
                launch=f"{number}.sh",
                device=worker.device,
                slice=worker.slice,
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
        folder / DEPLOYMENT_FILE, Deployment(deploy_target="embedded", partitions=partitions, workers=tuple(workers))
    )
    proxy: dict[str, Any] = {
        **tenant_sections(scenario),
        "layout": LAYOUT_FILE,
        "policy": {"name": choice.name, "options": choice.options},
        "seed": seed,
        "event_log": str(record.absolute()),
        "startup_timeout_s": 60,
        "tritons": [
            {"worker": worker.name, "grpc": f"127.0.0.1:{_FIRST_PORT + number}"}
            for number, worker in enumerate(layout.workers)
        ],
    }
    if scenario.controller is not None:
        # Validated, so that documents which options name by their paths are in it.
        options = Plugins.installed().make_controller(scenario.controller, layout, seed=seed).options
        proxy["controller"] = scenario.controller.model_dump(mode="json") | {"options": options.model_dump(mode="json")}
    (folder / PROXY_FILE).write_text(json.dumps(proxy, indent=2), encoding="utf-8")


def _config_of(part: LayoutPartition, step: _Step, profile: Profile) -> model_config_pb2.ModelConfig:
    """A model that takes the partition's time, whatever comes in, and gives the bytes that it sends."""
    config = model_config_pb2.ModelConfig(name=part.name, backend="python", max_batch_size=profile.max_rows)
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
    sent = _ANSWER_BYTES if step.last else _bytes_out(part)
    for key, value in (("table_ms", json.dumps(table_ms(profile))), ("output_bytes", str(sent))):
        config.parameters[key].string_value = value
    return config


def _set_parameters(config: model_config_pb2.ModelConfig, scenario: Scenario, model: str, *, seed: int) -> None:
    """Set the scenario's other settings of execution."""
    parameters = {"tidegate_scheduling": scenario.model(model).scheduling, **disturbances(scenario, seed)}
    for key, value in parameters.items():
        config.parameters[key].string_value = value


def disturbances(scenario: Scenario, seed: int) -> dict[str, str]:
    """Return the parameters of an emulated GPU that make its stages take longer than profiled."""
    parameters: dict[str, str] = {}
    if jitter := scenario.simulation.jitter:
        parameters |= {"jitter": str(jitter.cv), "jitter_kind": jitter.distribution, "seed": str(seed)}
    if stalls := scenario.simulation.stalls:
        factor, _ = stalls.factor.bounds  # constant, as was checked
        parameters |= {"stall_probability": str(stalls.probability), "stall_factor": str(factor), "seed": str(seed)}
    return parameters


def _write_model(folder: Path, config: model_config_pb2.ModelConfig) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), encoding="utf-8")
    copyfile(model_source("emulated_gpu"), folder / "1" / "model.py")


def true_times(scenario: Scenario) -> dict[tuple[str, str], Profile]:
    """Return the true latency of batches, as on simulated workers, by (partition, device class)."""
    _, _, expected, _ = layout_of(scenario).contract()
    return {(profile.partition, profile.device_class): profile for profile in true_profiles(scenario, expected)}


def table_ms(profile: Profile) -> dict[int, float]:
    """Return {rows: milliseconds}, as the emulated GPU reads it."""
    return {rows: profile.expected_ns(rows) / NS_PER_MS for rows in range(1, profile.max_rows + 1)}


def _steps(layout: Layout) -> dict[str, _Step]:
    """The place of every partition. Raises LoadTestError for one that stands at two."""
    parts = {part.name: part for part in layout.partitions}
    steps: dict[str, _Step] = {}
    for model in layout.models:
        for pipeline in model.pipelines:
            bytes_in = 0
            for number, name in enumerate(pipeline.partitions):
                last = number == len(pipeline.partitions) - 1
                step = steps.setdefault(name, _Step(number, last, bytes_in))
                if (step.number, step.last) != (number, last):
                    raise LoadTestError(
                        f"models: partition {name!r} stands at different places of two pipelines: emulated GPUs need "
                        "one of another name for each"
                    )
                bytes_in = _bytes_out(parts[name])
    return steps


def _bytes_out(part: LayoutPartition) -> int:
    return max(1, part.bytes_per_row)
