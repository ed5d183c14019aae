"""Graphs that the operator writes: models whose steps are other models, as in Triton's `ensemble_scheduling`."""

from pydantic import Field

from tidegate_proxy.configuration.section import ConfigSection, Name


class GraphStepConfig(ConfigSection):
    """Step of a graph, in the words of Triton's ensembles."""

    model: Name = Field(description="Model that the step runs")
    version: int | None = Field(default=None, ge=1, description="Version of the model; default: the latest")
    input_map: dict[Name, Name] = Field(min_length=1, description="Tensor of the graph by input of the model")
    output_map: dict[Name, Name] = Field(min_length=1, description="Tensor of the graph by output of the model")


class GraphConfig(ConfigSection):
    """Graph of models that Tidegate serves as one model."""

    inputs: tuple[Name, ...] = Field(min_length=1, description="Tensors that clients send")
    outputs: tuple[Name, ...] = Field(min_length=1, description="Tensors that clients get, in this order")
    steps: tuple[GraphStepConfig, ...] = Field(min_length=1, description="Steps, in any order")
    max_batch_size: int | None = Field(
        default=None, ge=1, description="Most rows of a request; default: the least of the models of its steps"
    )
