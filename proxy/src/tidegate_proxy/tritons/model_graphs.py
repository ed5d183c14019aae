"""Graphs of models: ensembles whose steps Tidegate schedules as stages, and why others bypass."""

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from tritonclient.grpc import model_config_pb2

from tidegate.api import Model
from tidegate.toolkit.stage_graph import StageGraph
from tidegate_proxy.configuration.section import GraphMode
from tidegate_proxy.messages.model_signature import ModelSignature, signature_of
from tidegate_proxy.messages.request import ParsedHeader


@dataclass(frozen=True, slots=True)
class GraphStage:
    """Step of a graph: one model, and the tensors that it takes and gives."""

    model: str
    version: str
    """Version of the model; "": the latest."""
    inputs: tuple[tuple[str, str], ...]
    """Each input of the model, and the tensor of the graph that it takes."""
    outputs: tuple[tuple[str, str], ...]
    """Each output of the model that the graph uses, and the tensor that it gives."""


@dataclass(frozen=True)
class ModelGraph:
    """Graph of models that is served under one name."""

    model: Model
    """Name, rows and SLO of the graph."""
    version: str
    signature: ModelSignature
    """Signature for clients; it reads headers if any of its stages does."""
    stages: tuple[GraphStage, ...]
    outputs: tuple[str, ...]
    """Outputs for clients, in the order of the config."""
    mode: GraphMode
    is_operators: bool = False
    """Whether it is a graph of the configuration, which no Triton has."""
    nested: frozenset[str] = frozenset()
    """Models within ensembles and graphs that are steps, at any depth."""

    @cached_property
    def order(self) -> StageGraph:
        """Stages that must end before each stage."""
        return _order(self.stages)

    @property
    def members(self) -> frozenset[str]:
        """Models of its stages, and those within ensembles and graphs that are stages."""
        return self.nested.union(stage.model for stage in self.stages)

    def needed(self, wanted: Iterable[str]) -> frozenset[int]:
        """Return the stages that make these outputs, as Triton prunes others; all stages for no outputs."""
        return needed_stages(self.stages, wanted)

    def why_bypassed(self, heading: ParsedHeader) -> str:
        """Return why a request is not run in stages, though it fits: Triton refuses it; "" if it is."""
        if heading.version not in ("", self.version):
            return f"version {heading.version!r} is not there: it has version {self.version}"
        return ""


def needed_stages(stages: Sequence[GraphStage], wanted: Iterable[str]) -> frozenset[int]:
    """Return the numbers of the stages that make these outputs, as Triton prunes others; all for no outputs."""
    makers = _makers(stages)
    found: set[int] = set()
    rest = [makers[name] for name in wanted if name in makers]
    if not rest:
        return frozenset(range(len(stages)))
    while rest:
        stage = rest.pop()
        if stage not in found:
            found.add(stage)
            rest += [makers[tensor] for _, tensor in stages[stage].inputs if tensor in makers]
    return frozenset(found)


def _makers(stages: Iterable[GraphStage]) -> dict[str, int]:
    return {tensor: number for number, stage in enumerate(stages) for _, tensor in stage.outputs}


def _order(stages: tuple[GraphStage, ...]) -> StageGraph:
    makers = _makers(stages)
    return StageGraph([{makers[tensor] for _, tensor in stage.inputs if tensor in makers} for stage in stages])


def models_within(name: str, steps: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return the models of an ensemble's steps, at any depth. `steps`: models of the steps of each ensemble."""
    found: set[str] = set()
    rest = [name]
    while rest:
        new = set(steps.get(rest.pop(), ())) - found
        found |= new
        rest += new
    return frozenset(found)


def inner_first(steps: Mapping[str, Iterable[str]]) -> tuple[list[str], dict[str, str]]:
    """Return ensembles in an order in which each follows those that are its steps, and the cycles that are left out.

    Args:
        steps: models of the steps of each ensemble.

    Returns:
        The names in order, and for each ensemble that is a step of itself, at any depth, the cycle as text.
    """
    within = {name: [model for model in models if model in steps] for name, models in steps.items()}
    cycles: dict[str, str] = {}
    while True:
        try:
            return list(TopologicalSorter(within).static_order()), cycles
        except CycleError as error:
            names = error.args[1][::-1]  # each runs the one after it
            cycles |= dict.fromkeys(names, " -> ".join(names))
            within = {
                name: [model for model in models if model not in cycles]
                for name, models in within.items()
                if name not in cycles
            }


def stages_of(config: model_config_pb2.ModelConfig) -> tuple[GraphStage, ...]:
    """Return the stages of an ensemble's config, in its order."""
    return tuple(
        GraphStage(
            step.model_name,
            "" if step.model_version < 0 else str(step.model_version),
            tuple(sorted(step.input_map.items())),
            tuple(sorted(step.output_map.items())),
        )
        for step in config.ensemble_scheduling.step
    )


def why_not_expandable(
    config: model_config_pb2.ModelConfig,
    scheduled: Container[str],
    unscheduled: Mapping[str, str],
    ensembles: Container[str] = (),
) -> str:
    """Return why an ensemble cannot be expanded as Triton runs it; "" if it can be.

    Args:
        config: config of the ensemble.
        scheduled: names of the scheduled models.
        unscheduled: why the others are not scheduled, by name.
        ensembles: names of ensembles and graphs, which may be steps whether they are expanded or not.
    """
    obstacles = itertools.chain(
        _obstacles(config), _unscheduled_steps(config, scheduled, unscheduled, ensembles), _gaps(config)
    )
    return next(obstacles, "")


def _obstacles(config: model_config_pb2.ModelConfig) -> Iterator[str]:
    """Why requests to an ensemble are not to be expanded, whatever its steps are."""
    if config.max_batch_size < 1:
        yield "max_batch_size is 0: the ensemble has no batch dimension"
    if config.model_transaction_policy.decoupled:
        yield "decoupled: a request may have any number of responses"
    if config.response_cache.enable:
        yield "response_cache: Triton answers what it knows before a step runs"
    for tensor in (*config.input, *config.output):
        if tensor.HasField("reshape") or tensor.is_shape_tensor:
            yield f"tensor {tensor.name!r} is reshaped, or is a shape tensor"
    for tensor in config.input:
        if tensor.optional:
            yield f"input {tensor.name!r} is optional"


def _unscheduled_steps(
    config: model_config_pb2.ModelConfig,
    scheduled: Container[str],
    unscheduled: Mapping[str, str],
    ensembles: Container[str],
) -> Iterator[str]:
    for number, step in enumerate(config.ensemble_scheduling.step):
        where = f"step {number} ({step.model_name})"
        if step.model_namespace:
            yield f"{where} has a namespace"
        if step.model_name not in scheduled and step.model_name not in ensembles:
            why = unscheduled.get(step.model_name)
            yield f"{where} is not scheduled: {why}" if why else f"{where} is not loaded"


def _gaps(config: model_config_pb2.ModelConfig) -> Iterator[str]:
    """Why the steps of a config are no graph."""
    stages = stages_of(config)
    given = {tensor.name for tensor in config.input}
    made = given | _makers(stages).keys()
    wanted = [
        (f"step {number} ({stage.model})", name) for number, stage in enumerate(stages) for _, name in stage.inputs
    ]
    wanted += [("an output", tensor.name) for tensor in config.output]
    for where, name in wanted:
        if name not in made:
            yield f"{where} takes tensor {name!r}, which no step makes"
    try:
        _order(stages)
    except ValueError as error:
        yield f"its steps form a cycle ({error})"


def graph_of(
    config: model_config_pb2.ModelConfig,
    members: Mapping[str, ModelSignature],
    model: Model,
    version: str,
    mode: GraphMode,
    nested: frozenset[str] = frozenset(),
) -> ModelGraph:
    """Return the graph of a config that `why_not_expandable` accepts.

    Args:
        config: config of the ensemble.
        members: signatures of the models of its steps.
        model: name, rows and SLO of the ensemble.
        version: the only version that is served.
        mode: when the graph is expanded.
        nested: models within ensembles and graphs that are steps, at any depth.
    """
    stages = stages_of(config)
    signature = replace(
        signature_of(config),
        reads_headers=any(members[stage.model].reads_headers for stage in stages),
        heeds_timeout=False,
    )
    outputs = tuple(tensor.name for tensor in config.output)
    return ModelGraph(model, version, signature, stages, outputs, mode, nested=nested)
