"""Registers the planners of MPS shares, and the training of those that learned."""

from importlib import import_module
from typing import cast

from tidegate.api import CommandSpec, Planner, PlannerSpec, PlanningError, Progress, hookimpl
from tidegate.control import ControllerSpec
from tidegate_inss.commands.train_inss import train_inss
from tidegate_inss.controllers import GsliceLoop, ShareReplanning
from tidegate_inss.layout import layout_of
from tidegate_inss.plan import SharePlan
from tidegate_inss.problem import ShareProblem


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Offer the search, InSS's networks, and the planners that these are judged by."""
    offered = [
        ("shares", "Divides GPUs into MPS shares, by what models bear beside each other", "planners.plan_shares"),
        ("inss", "MPS shares in milliseconds, by networks that learned to divide GPUs", "learned.planner.plan_inss"),
        (
            "inss-ni",
            "The same by networks that know of no neighbours: a baseline for inss",
            "learned.planner.plan_inss_ni",
        ),
        (
            "gpulet",
            "At most two MPS shares of a GPU, models taking turns: a baseline for shares",
            "planners.plan_by_gpulet",
        ),
        ("gslice", "MPS shares that follow latency and throughput: a baseline for shares", "planners.plan_by_gslice"),
        ("igniter", "The least MPS shares on the fewest GPUs: a baseline for shares", "planners.plan_by_igniter"),
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


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Offer `train-inss`."""
    return [CommandSpec("train-inss", train_inss)]


def _imported_late(where: str) -> Planner:
    """The planner that is there: those who only read problems and plans need neither numpy nor onnxruntime."""
    module, function = where.rsplit(".", maxsplit=1)

    def run(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
        try:
            planners = import_module(f"tidegate_inss.{module}")
        except ModuleNotFoundError as error:
            raise PlanningError(f'the planner needs {error.name}: pip install "tidegate-inss[planner]"') from error
        return cast("SharePlan", getattr(planners, function)(problem, time_limit_s=time_limit_s, progress=progress))

    return run
