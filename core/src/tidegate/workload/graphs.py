"""Graphs of a scenario: requests that run through several models, as in an ensemble, with one SLO."""

from functools import cached_property
from typing import Self

from pydantic import Field, model_validator

from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import Name, Positive
from tidegate.schemas.validation_errors import check_each_once
from tidegate.toolkit.stage_graph import StageGraph


class GraphStageSpec(DocumentSection):
    """Stage of a graph: a request of one row to a model."""

    model: Name
    name: Name | None = Field(default=None, description="Name of the stage; default: the name of its model")
    after: list[Name] | None = Field(
        default=None, description="Stages that must end before; default: the stage listed before, for the first: none"
    )

    @property
    def title(self) -> str:
        """Name of the stage."""
        return self.name or self.model


class GraphSpec(DocumentSection):
    """A graph of models (an ensemble), whose requests have one SLO for all stages."""

    name: Name
    slo_ms: Positive | None = Field(
        default=None, description="Time from arrival within which the last stage should end"
    )
    weight: float = Field(default=1.0, ge=0, description="Weight of the graph among the arrivals, as of a model")
    stages: list[GraphStageSpec] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_graph(self) -> Self:
        names = [stage.title for stage in self.stages]
        check_each_once("stages", names, "give one of them a name")
        for stage in self.stages:
            if unknown := [name for name in stage.after or () if name not in names]:
                raise ValueError(f"stages: {stage.title!r} is after {unknown[0]!r}, which is no stage of the graph")
        try:
            _ = self.order
        except ValueError as error:
            cycle = " -> ".join(names[int(number)] for number in str(error).split(" -> "))
            raise ValueError(f"stages: they form a cycle ({cycle}): leave one out of `after`") from error
        return self

    @cached_property
    def order(self) -> StageGraph:
        """Stages that must end before each stage."""
        numbers = {stage.title: number for number, stage in enumerate(self.stages)}
        return StageGraph(
            [
                [numbers[name] for name in stage.after] if stage.after is not None else [number - 1] * (number > 0)
                for number, stage in enumerate(self.stages)
            ]
        )
