"""Registration of the planners of MPS shares, their training, and the controllers."""

from tidegate.api import CommandSpec, PlannerSpec, hookimpl
from tidegate.control import ControllerSpec
from tidegate_inss.commands.train_inss import train_inss
from tidegate_inss.controllers import GsliceLoop, ShareReplanning
from tidegate_inss.layout import layout_of
from tidegate_inss.plan import SharePlan
from tidegate_inss.planner_registry import SHARE_PLANNERS
from tidegate_inss.problem import ShareProblem, problem_of


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Return the planner `shares`, InSS's networks, and their baselines."""
    return [
        PlannerSpec(name, summary, ShareProblem, SharePlan, plan, layout_of, problem_of if name == "shares" else None)
        for name, (summary, plan) in SHARE_PLANNERS.items()
    ]


@hookimpl
def tidegate_controllers() -> list[ControllerSpec]:
    """Return the controllers that change shares with the load."""
    return [
        ControllerSpec(
            "share-replanning", "Divides GPUs again when their MPS shares cannot sustain the load", ShareReplanning
        ),
        ControllerSpec("gslice-loop", "Adjusts MPS shares to latency and throughput, step by step", GsliceLoop),
    ]


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Return the command `train-inss`."""
    return [CommandSpec("train-inss", train_inss)]
