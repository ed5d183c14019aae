"""Scenario on a planner's layout: the demand that the planner gets, and the layout that it returns."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tidegate.api import PlannerSpec, PlanningError, VersionedDocument
from tidegate.recommend.hardware import checked, format_gpus, tables_ms
from tidegate.recommend.query import RecommendQuery
from tidegate.schemas import Demand, DemandedModel, DocumentError, InterferenceModel
from tidegate.workload import Scenario, mean_rate_rps, sizes_of

OF_THE_LAYOUT = ("profile", "profiles", "max_batch", "pipelines")
"""Fields that a layout defines for its models, so a scenario with a layout must not contain them."""


def planned_on(question: RecommendQuery, planner: PlannerSpec, gpus: Sequence[str]) -> Scenario:
    """Return the query's scenario on these GPUs with the layout of a planner.

    Raises PlanningError, with reason and remedy, if the planner finds no layout or lacks data, and ScenarioError if the
    traffic does not fit the layout.
    """
    if planner.problem_of is None or planner.layout is None or question.run_planner is None:
        raise PlanningError("it makes no layouts of GPUs, or is one that others are judged by")
    try:
        problem = planner.problem_of(demand_of(question, gpus))
        plan = question.run_planner(planner, problem)
        layout = planner.layout(problem, plan)
    except (DocumentError, ValueError) as error:  # pydantic's is one, for what a problem does not take
        raise PlanningError(_in_a_line(error)) from error
    return _with_layout(question.scenario, layout, f"{planner.name} on {format_gpus(gpus)}")


def demand_of(question: RecommendQuery, gpus: Sequence[str]) -> Demand:
    """Return the demand of every model, on these GPUs."""
    scenario = question.scenario
    weights = scenario.weights()
    rate_rps, sizes = mean_rate_rps(scenario), sizes_of(scenario)
    measured = scenario.simulation.interference
    return Demand(
        models=tuple(
            DemandedModel(
                model.name,
                model.slo_ms,
                rate_rps * weight / sum(weights),
                model.max_rows,
                sizes[model.name],
                tables_ms(scenario, model, gpus),
                question.blocks.get(model.name),
            )
            for model, weight in zip(scenario.models, weights, strict=True)
            if weight
        ),
        gpus=Counter(gpus),
        interference=measured if isinstance(measured, InterferenceModel) else None,
        gbps=None if scenario.network is None else scenario.network.gbps,
    )


def _with_layout(scenario: Scenario, layout: VersionedDocument, where: str) -> Scenario:
    given: dict[str, Any] = scenario.model_dump(mode="json", exclude_defaults=True)
    for section in ("workers", "controller", "network"):
        given.pop(section, None)
    given["layout"] = layout.model_dump(mode="json", exclude_none=True)
    given["models"] = [
        {
            "weight": model.weight,
            **{
                name: value
                for name, value in model.model_dump(mode="json", exclude_defaults=True).items()
                if name not in OF_THE_LAYOUT
            },
        }
        for model in scenario.models
    ]
    given.get("simulation", {}).pop("events", None)
    return checked(given, scenario, where)


def _in_a_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines()[:3])
