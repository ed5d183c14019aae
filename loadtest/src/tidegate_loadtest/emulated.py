"""Emulated cluster of a scenario: tritonservers on this machine with emulated GPUs, and Tidegate in front of them.

Each entry of the scenario's `workers` is one tritonserver with that many instances of each of its models; each instance
is one worker. A graph is an ensemble of these models, which Tidegate expands. The policy `triton` is Triton itself: its
dynamic batcher with the policy's options, an instance group for each device class, and no Tidegate in front. Split
models, and several device classes under other policies, become a deployment with one Triton for each worker
(`emulated_layout`).
"""

import json
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

from google.protobuf import text_format
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import model_config_pb2

from tidegate.api import NS_PER_MS
from tidegate.schemas import (
    ModelProfile,
    ProfilePoint,
    dynamic_batching_of,
    format_shape,
    options_of_model,
    write_profile,
)
from tidegate.sim.build import setup_of
from tidegate.workload import PolicyChoice, Scenario, layout_of
from tidegate.workload.distributions import Constant
from tidegate.workload.graphs import GraphSpec
from tidegate.workload.scenario import ModelSpec
from tidegate.workload.workers import WorkerSpec
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.emulated_layout import (
    check_layout_can_be_emulated,
    disturbances,
    is_laid_out,
    needs_layout,
    table_ms,
    true_times,
    write_emulated_deployment,
)
from tidegate_loadtest.processes import deployment_up, serving_command
from tidegate_loadtest.profiler import fit_line
from tidegate_loadtest.shapes import shape_of_request
from tidegate_loadtest.tenant_headers import tenant_sections
from tidegate_triton_models import model_source

TRITON_POLICY = "triton"
"""Policy name that stands for Triton's own dynamic batcher."""
MAX_INSTANCES = 128
"""Largest number of model instances; each is a process of its own."""
GPU_RESOURCE = "gpus"
"""Resource of Triton's rate limiter, one per device class, by which it runs one model at a time per worker."""
FLOATS_PER_INPUT = 8
"""Floats of a row of each input of an emulated model without shapes."""


@dataclass(frozen=True)
class EmulatedCluster:
    """Emulated cluster that runs on this machine."""

    address: str
    """HOST:PORT for clients."""
    event_log: Path | None
    """Event log of Tidegate, complete once the cluster is stopped; None for Triton itself."""
    tritons: tuple[str, ...]
    """Addresses of the Tritons."""


def check_can_be_emulated(scenario: Scenario, choices: Sequence[PolicyChoice]) -> None:
    """Check that GPUs can be emulated for a scenario. Raises LoadTestError with the field and the remedy."""
    simulation, pools = scenario.simulation, scenario.workers
    own_batcher = any(choice.name == TRITON_POLICY for choice in choices)
    instances = sum(len(worker.hosts) for worker in layout_of(scenario).workers)
    hosted = {tuple(_hosted(scenario, pool)) for pool in pools}
    for wrong, what in (
        (
            own_batcher and is_laid_out(scenario),
            "policies: `triton` is one Triton by itself, which knows neither split models nor layouts, nor who shares "
            "a GPU, nor a controller: choose other policies with --policy",
        ),
        (any(map(_carries_time, scenario.models)), "models: emulated GPUs take no `time_ms`: leave it out"),
        (
            simulation.stalls and len(set(simulation.stalls.factor.bounds)) > 1,
            "simulation.stalls.factor: stalls of emulated GPUs are all of one length: give a number",
        ),
        (
            needs_layout(scenario) and any(model.shapes for model in scenario.models),
            "models: emulated GPUs take `shapes` only where no model is split, all workers are of one kind, and no "
            "controller changes them",
        ),
        (
            isinstance(simulation.interference, float) and simulation.interference != 1,
            "simulation.interference: emulated GPUs slow each other down as an interference file says, not by one "
            "factor: name such a file, or leave it out",
        ),
        (
            needs_layout(scenario) and scenario.graphs,
            "graphs: emulated GPUs run them only where no model is split, all workers are of one kind, and no "
            "controller changes them",
        ),
        (
            any(model.streaming for model in scenario.models),
            "models: emulated GPUs answer a request once, without `streaming`: name a server with --target",
        ),
        (simulation.failures, "simulation.failures: emulated GPUs do not fail: leave it out"),
        (simulation.events, "simulation.events: emulated GPUs neither go nor come: leave it out"),
        (
            instances > MAX_INSTANCES,
            f"workers: {instances} models on workers, each a process: emulate at most {MAX_INSTANCES}, with fewer "
            "workers or models",
        ),
        (
            len(hosted) > 1 and own_batcher,
            "workers: the policy `triton` is one Triton, whose workers host the same models: leave out `hosts`, or "
            "choose other policies with --policy",
        ),
    ):
        if wrong:
            raise LoadTestError(what)
    for model in scenario.models:
        _inputs(scenario, model)
    if needs_layout(scenario):
        check_layout_can_be_emulated(scenario)
    for graph in scenario.graphs:
        if not any(_runs_on(graph, _hosted(scenario, pool)) for pool in pools):
            raise LoadTestError(
                f"graphs: {graph.name!r}: no entry of `workers` hosts all of its models, and an ensemble needs them on "
                "one Triton: add them to the hosts of some entry"
            )


@contextmanager
def emulated_cluster(scenario: Scenario, choice: PolicyChoice, seed: int, work: Path) -> Iterator[EmulatedCluster]:
    """Run the scenario's cluster under a policy until the block is left. `work`: folder for its files.

    Raises LoadTestError if a process fails to start. `choice`: the policy; `seed`: seed of the random variation of
    latencies.
    """
    event_log = work / "events.jsonl"
    own_batcher = choice.name == TRITON_POLICY
    if needs_layout(scenario) and not own_batcher:
        write_emulated_deployment(work / "deployment", scenario, choice, seed, event_log)
        with deployment_up(work / "deployment", work / "tidegate.errors") as state:
            yield EmulatedCluster(state["grpc"], event_log, tuple(worker["grpc"] for worker in state["workers"]))
        return
    groups = [by_kind(scenario.workers)] if own_batcher else [[pool] for pool in scenario.workers]
    with ExitStack() as running:
        tritons = []
        for number, pools in enumerate(groups):
            repository = work / f"models{number}"
            models = _hosted(scenario, pools[0])
            for name in models:
                batching = choice.options if own_batcher else None
                write_emulated_model(repository, scenario, scenario.model(name), pools, seed=seed, batching=batching)
            for graph in scenario.graphs:
                if _runs_on(graph, models):
                    write_emulated_ensemble(repository, scenario, graph)
            limits = [f"--rate-limit-resource={GPU_RESOURCE}-{kind}:{pool.count}" for kind, pool in enumerate(pools)]
            limits.append("--rate-limit=execution_count")
            flags = ["--", *limits] if own_batcher and len(models) > 1 else []
            ports = [word for name in ("grpc", "http", "metrics") for word in (f"--{name}-port", "0")]
            log = ["--log-file", str(work / f"triton{number}.log")]
            command = ("triton", *ports, *log, str(repository), *flags)
            tritons.append(running.enter_context(serving_command(*command, log=work / f"triton{number}.errors")))
        if own_batcher:
            yield EmulatedCluster(tritons[0], None, tuple(tritons))
            return
        serve = [word for address in tritons for word in ("--triton", address)]
        serve += [word for name, value in choice.options.items() for word in ("--option", f"{name}={_text(value)}")]
        serve += [
            "--profiles",
            str(write_profiles(work / "profiles.json", scenario, seed)),
            "--event-log",
            str(event_log),
        ]
        if sections := tenant_sections(scenario):
            config = work / "tidegate.json"
            config.write_text(json.dumps(sections), encoding="utf-8")
            serve += ["--config", str(config)]
        command = ("serve", "--policy", choice.name, "--listen", "127.0.0.1:0", "--seed", str(seed), *serve)
        address = running.enter_context(serving_command(*command, log=work / "tidegate.errors"))
        yield EmulatedCluster(address, event_log, tuple(tritons))


def write_emulated_model(
    repository: Path,
    scenario: Scenario,
    model: ModelSpec,
    pools: Sequence[WorkerSpec],
    *,
    seed: int,
    batching: dict[str, Any] | None,
) -> None:
    """Write an emulated model with the latency of the scenario's model, and an instance for each worker of the pools.

    `repository`: folder of the model repository. `pools`: one per device class, each an instance group. `batching`: the
    options of the policy `triton`, for Triton's dynamic batcher; None: no dynamic batching.
    """
    config = model_config_pb2.ModelConfig(name=model.name, backend="python", max_batch_size=model.max_rows)
    inputs = _inputs(scenario, model)
    for number, (name, size) in enumerate(inputs.items()):
        dims = [-1] * len(size) if model.shapes else list(size)
        config.input.add(name=name, data_type=model_config_pb2.TYPE_FP32, dims=dims)
        config.output.add(name=f"OUTPUT{number}", data_type=model_config_pb2.TYPE_FP32, dims=dims)
    for kind, pool in enumerate(pools):
        group = config.instance_group.add(count=pool.count, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
        if len(pools) > 1:
            group.name = pool.device_class
        group.rate_limiter.resources.add(name=f"{GPU_RESOURCE}-{kind}", count=1)
    for key, value in _parameters(scenario, model, pools, seed).items():
        config.parameters[key].string_value = value
    # An instance's first execution is slow, and a scheduler would learn a latency from it that does not come again.
    warmup = config.model_warmup.add(name="first", batch_size=1, count=2)
    for name, size in inputs.items():
        warmup.inputs[name].data_type = model_config_pb2.TYPE_FP32
        warmup.inputs[name].dims.extend(size)
        warmup.inputs[name].zero_data = True
    if batching is not None and model.scheduling == "batched":
        config.dynamic_batching.SetInParent()
        own = options_of_model(batching, model.name)
        ParseDict(dynamic_batching_of(own, model.max_rows), config.dynamic_batching)
    version = repository / model.name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config), encoding="utf-8")
    copyfile(model_source("emulated_gpu"), version / "model.py")


def write_emulated_ensemble(repository: Path, scenario: Scenario, graph: GraphSpec) -> None:
    """Write a graph as an ensemble of emulated models; `repository`: folder of the model repository.

    The first stages take the input of the ensemble, the others the outputs of the stages before.
    """
    rows = min(scenario.model(stage.model).max_rows for stage in graph.stages)
    config = model_config_pb2.ModelConfig(name=graph.name, platform="ensemble", max_batch_size=rows)
    config.input.add(name="INPUT0", data_type=model_config_pb2.TYPE_FP32, dims=[FLOATS_PER_INPUT])
    for number, stage in enumerate(graph.stages):
        sources = [f"OUTPUT{before}" for before in sorted(graph.order.predecessors[number])] or ["INPUT0"]
        inputs = _inputs(scenario, scenario.model(stage.model))
        config.ensemble_scheduling.step.add(
            model_name=stage.model,
            model_version=-1,
            input_map={name: sources[place % len(sources)] for place, name in enumerate(inputs)},
            output_map={"OUTPUT0": f"OUTPUT{number}"},
        )
        if not graph.order.successors[number]:
            config.output.add(name=f"OUTPUT{number}", data_type=model_config_pb2.TYPE_FP32, dims=[FLOATS_PER_INPUT])
    config.parameters["tidegate_scheduling"].string_value = "expanded"
    if graph.slo_ms is not None:
        config.parameters["slo_ms"].string_value = str(graph.slo_ms)
    (repository / graph.name / "1").mkdir(parents=True)
    (repository / graph.name / "config.pbtxt").write_text(text_format.MessageToString(config), encoding="utf-8")


def write_profiles(path: Path, scenario: Scenario, seed: int) -> Path:
    """Write the profiles that policies use, as the file that `tidegate serve` reads; return its path."""
    for profile in setup_of(scenario, seed).profiles:
        points = [
            ProfilePoint(
                rows=rows,
                median_ms=profile.expected_ns(rows) / NS_PER_MS,
                p95_ms=profile.upper_ns(rows) / NS_PER_MS,
                samples=1,
            )
            for rows in profile.every_size
        ]
        alpha_ms, beta_ms = fit_line(points)
        model, shape = profile.partition, format_shape(shape_of_request(profile.partition, profile.shape))
        emulated = ModelProfile(model=model, shape=shape, alpha_ms=alpha_ms, beta_ms=beta_ms, points=points)
        write_profile(path, emulated)
    return path


def _parameters(scenario: Scenario, model: ModelSpec, pools: Sequence[WorkerSpec], seed: int) -> dict[str, str]:
    true = true_times(scenario)
    times = true[model.name, pools[0].device_class]
    parameters: dict[str, str] = {"tidegate_scheduling": model.scheduling}
    if len(pools) > 1:
        parameters["groups_ms"] = json.dumps(
            {pool.device_class: table_ms(true[model.name, pool.device_class]) for pool in pools}
        )
    elif model.shapes:
        tables = {shape.shape: table_ms(shape.profile_from(times)) for shape in model.shapes}
        parameters["shapes_ms"] = json.dumps(tables)
    else:
        parameters["table_ms"] = json.dumps(table_ms(times))
    if model.slo_ms is not None:
        parameters["slo_ms"] = str(model.slo_ms)
    if model.on_deadline_miss == "serve":
        parameters["tidegate_on_deadline_miss"] = model.on_deadline_miss
    return parameters | disturbances(scenario, seed)


def _inputs(scenario: Scenario, model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The inputs of an emulated model, each with the dimensions of a request of the first shape, rows not counted.

    Without shapes, as many as a stage of the model has predecessors.
    """
    joined = [
        len(before)
        for graph in scenario.graphs
        for stage, before in zip(graph.stages, graph.order.predecessors, strict=True)
        if stage.model == model.name
    ]
    plain: dict[str, tuple[int, ...]] = {f"INPUT{number}": (FLOATS_PER_INPUT,) for number in range(max((1, *joined)))}
    sizes = [shape_of_request(model.name, shape.shape) for shape in model.shapes] or [plain]
    ranks = [{name: len(size) for name, size in each.items()} for each in sizes]
    if odd := next((number for number, each in enumerate(ranks) if each != ranks[0]), None):
        raise LoadTestError(
            f"models: {model.name!r}: the shapes {model.shapes[0].shape!r} and {model.shapes[odd].shape!r} differ in "
            "their inputs or in the number of their dimensions: one emulated model cannot take both"
        )
    return sizes[0]


def by_kind(pools: Sequence[WorkerSpec]) -> list[WorkerSpec]:
    """Merge pools of equal workers into one entry each."""
    counts = Counter(pool.device_class for pool in pools for _ in range(pool.count))
    first = {pool.device_class: pool for pool in reversed(pools)}
    return [first[kind].model_copy(update={"count": count}) for kind, count in counts.items()]


def _hosted(scenario: Scenario, pool: WorkerSpec) -> list[str]:
    return sorted(pool.hosts or scenario.partitions)


def _runs_on(graph: GraphSpec, models: Container[str]) -> bool:
    """Whether a Triton with these models can run a graph as an ensemble."""
    return all(stage.model in models for stage in graph.stages)


def _carries_time(model: ModelSpec) -> bool:
    return any(
        time_ms != Constant(value=0) for time_ms in (model.time_ms, *(app.time_ms for app in model.apps)) if time_ms
    )


def _text(value: object) -> str:
    """An option's value as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
