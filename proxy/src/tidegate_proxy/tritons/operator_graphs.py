"""Graphs of the configuration, checked against the models of the Tritons and written as an ensemble's config."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.configuration.config import GraphConfig
from tidegate_proxy.messages.model_signature import datatype_of
from tidegate_proxy.tritons.backend import BackendError
from tidegate_proxy.tritons.batching_mode import BatchingDecision
from tidegate_proxy.tritons.model_graphs import inner_first

GRAPH_VERSION = "1"
"""Version of every graph of the configuration."""
GRAPH_CONSENT = BatchingDecision("expanded", "a graph of the configuration: its steps are scheduled")


class _TensorType(NamedTuple):
    """Type of a tensor: datatype of configs, and dims beyond the batch dimension, -1 for any size."""

    data_type: int
    dims: tuple[int, ...]

    def __str__(self) -> str:
        return f"{datatype_of(self.data_type)} {list(self.dims)}"

    def meet(self, other: "_TensorType") -> "_TensorType | None":
        """Return the type of a tensor that has both types; None: there is none."""
        if self.data_type != other.data_type or len(self.dims) != len(other.dims):
            return None
        pairs = list(zip(self.dims, other.dims, strict=True))
        if any(mine != theirs and -1 not in (mine, theirs) for mine, theirs in pairs):
            return None
        return _TensorType(self.data_type, tuple(max(pair) for pair in pairs))


def operator_graph_order(graphs: Mapping[str, GraphConfig]) -> list[str]:
    """Return the names of graphs in an order in which each follows those that are its steps."""
    order, _ = inner_first({name: [step.model for step in graph.steps] for name, graph in graphs.items()})
    return order


def ensemble_config_of(
    name: str, graph: GraphConfig, configs: Mapping[str, model_config_pb2.ModelConfig]
) -> model_config_pb2.ModelConfig:
    """Return a graph as the config of an ensemble, with the types of its inputs and outputs.

    Raises BackendError, with the place and the remedy, for a model that no Triton has, a tensor that two steps make or
    none, an input that no tensor is given, and tensors that do not meet.

    Args:
        name: name of the graph.
        graph: graph of the configuration.
        configs: configs of the loaded models, and of graphs that are its steps, by name.
    """
    if name in configs:
        raise BackendError(f"graphs.{name}: a model of the Tritons has that name; choose another")
    types = _types_of(name, graph, configs)
    if missing := [tensor for tensor in graph.outputs if tensor not in types]:
        raise BackendError(
            f"graphs.{name}.outputs: no step makes tensor {missing[0]!r}; name one of {', '.join(sorted(types))}"
        )
    sizes = [configs[step.model].max_batch_size for step in graph.steps]
    config = model_config_pb2.ModelConfig(
        name=name, platform="ensemble", max_batch_size=min(graph.max_batch_size or min(sizes), *sizes)
    )
    for tensors, add in ((graph.inputs, config.input.add), (graph.outputs, config.output.add)):
        for tensor in tensors:
            add(name=tensor, data_type=types[tensor].data_type, dims=types[tensor].dims)
    for step in graph.steps:
        config.ensemble_scheduling.step.add(
            model_name=step.model,
            model_version=step.version or -1,
            input_map=step.input_map,
            output_map=step.output_map,
        )
    return config


def _types_of(
    name: str, graph: GraphConfig, configs: Mapping[str, model_config_pb2.ModelConfig]
) -> dict[str, _TensorType]:
    """The type of each tensor of a graph. Raises BackendError."""
    made: dict[str, str] = dict.fromkeys(graph.inputs, "the client")
    types: dict[str, _TensorType] = {}
    for number, step in enumerate(graph.steps):
        where = f"graphs.{name}.steps.{number}"
        if step.model not in configs:
            raise BackendError(f"{where}: no Triton has model {step.model!r}; load it, or correct the name")
        outputs = _declared(configs[step.model].output)
        for output, tensor in step.output_map.items():
            if output not in outputs:
                raise BackendError(f"{where}.output_map: {step.model!r} has no output {output!r}{_has(outputs)}")
            if tensor in made:
                raise BackendError(
                    f"{where}.output_map: tensor {tensor!r} already comes from {made[tensor]}; give it another name"
                )
            made[tensor] = f"step {number} ({step.model})"
            types[tensor] = outputs[output]
    for number, step in enumerate(graph.steps):
        where, config = f"graphs.{name}.steps.{number}.input_map", configs[step.model]
        inputs = _declared(config.input)
        if unknown := [each for each in step.input_map if each not in inputs]:
            raise BackendError(f"{where}: {step.model!r} has no input {unknown[0]!r}{_has(inputs)}")
        needed = [tensor.name for tensor in config.input if not tensor.optional]
        if missing := [each for each in needed if each not in step.input_map]:
            raise BackendError(f"{where}: {step.model!r} needs input {missing[0]!r}; map a tensor to it")
        for each, tensor in step.input_map.items():
            if tensor not in made:
                raise BackendError(
                    f"{where}: no step makes tensor {tensor!r}; make it with an output_map, or list it in inputs"
                )
            met = types.get(tensor, inputs[each]).meet(inputs[each])
            if met is None:
                raise BackendError(
                    f"{where}: input {each!r} of {step.model!r} is {inputs[each]}, and tensor {tensor!r} from "
                    f"{made[tensor]} is {types[tensor]}; map another tensor"
                )
            types[tensor] = met
    if unused := [tensor for tensor in graph.inputs if tensor not in types]:
        raise BackendError(f"graphs.{name}.inputs: no step takes tensor {unused[0]!r}; leave it out, or map it")
    return types


def _declared(
    tensors: Sequence[model_config_pb2.ModelInput] | Sequence[model_config_pb2.ModelOutput],
) -> dict[str, _TensorType]:
    return {tensor.name: _TensorType(tensor.data_type, tuple(tensor.dims)) for tensor in tensors}


def _has(names: Iterable[str]) -> str:
    return f"; it has {', '.join(sorted(names))}"
