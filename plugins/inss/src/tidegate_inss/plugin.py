"""Registers the planners of MPS shares."""

from importlib import import_module
from typing import cast

from tidegate.api import Planner, PlannerSpec, PlanningError, Progress, hookimpl
from tidegate.control import ControllerSpec
from tidegate_inss.controllers import GsliceLoop, ShareReplanning
from tidegate_inss.layout import layout_of
from tidegate_inss.plan import SharePlan
from tidegate_inss.problem import ShareProblem


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Offer the search, and the planners that it is judged by."""
    offered = [
        ("shares", "Divides GPUs into MPS shares, by what models bear beside each other", "plan_shares"),
        ("gpulet", "At most two MPS shares of a GPU, models taking turns: a baseline for shares", "plan_by_gpulet"),
        ("gslice", "MPS shares that follow latency and throughput: a baseline for shares", "plan_by_gslice"),
        ("igniter", "The least MPS shares on the fewest GPUs: a baseline for shares", "plan_by_igniter"),
    ]
    return [
        PlannerSpec(name, words, ShareProblem, SharePlan, _imported_late(function), layout_of)
        for name, words, function in offered
    ]


@hookimpl
def tidegate_controllers() -> list[ControllerSpec]:
    """Offer shares that follow the load."""
    return [
        ControllerSpec("share-replanning", "Divides GPUs anew when their MPS shares bear too little", ShareReplanning),
        ControllerSpec("gslice-loop", "MPS shares that follow latency and throughput, step by step", GsliceLoop),
    ]


def _imported_late(function: str) -> Planner:
    """The planner of this name in `planners`: those who only read problems and plans need no numpy."""

    def run(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
        try:
            planners = import_module("tidegate_inss.planners")
        except ModuleNotFoundError as error:
            raise PlanningError(f'the planner needs {error.name}: pip install "tidegate-inss[planner]"') from error
        return cast("SharePlan", getattr(planners, function)(problem, time_limit_s=time_limit_s, progress=progress))

    return run
