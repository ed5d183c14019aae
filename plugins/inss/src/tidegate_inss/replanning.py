"""Replanning of MPS shares when current ones cannot sustain the rates, for the controller `share-replanning`.

Models stay on their GPUs if other shares there suffice, because a model that moves or gets another share is loaded
again. Only otherwise the search, starting from the current placement, moves models.
"""

from collections import Counter
from collections.abc import Sequence

from tidegate.api import PlanningError
from tidegate.schemas import Layout
from tidegate_inss.layout import layout_of, shares_of, steady_batches
from tidegate_inss.plan import SharePlan, build_plan
from tidegate_inss.planner_registry import SHARE_PLANNERS
from tidegate_inss.prediction import AssignedShare, Predictor, by_gpu, why_not
from tidegate_inss.problem import ShareProblem
from tidegate_inss.search import Placement, PlacementSearch, placement_of


def replanned(problem: ShareProblem, layout: Layout, planner: str, *, min_gain: float) -> Layout | None:
    """Return a layout that sustains more of the problem's rates; None if the current one sustains them, or if the gain
    is below `min_gain`.

    `planner`: name of the planner; `shares` starts from the current placement. `min_gain`: relative; a smaller one may
    be chance, and the next plan would change it back. Raises PlanningError if there is no plan, or if a GPU has no
    memory for its current and its new processes at once, which a change needs.
    """
    present = shares_of(problem, layout)
    predictor = Predictor(problem)
    placement, bears = placement_of(predictor, present)
    if bears >= 1:
        return None
    if planner == "shares":
        plan = _searched(predictor, placement, present)
    else:
        plan = SHARE_PLANNERS[planner][1](problem, time_limit_s=1.0, progress=_Steps())
    if plan.bears < bears * (1 + min_gain):
        return None
    wanted = layout_of(problem, plan)
    _check_memory(predictor, present, shares_of(problem, wanted))
    return wanted


def _searched(predictor: Predictor, placement: Placement, present: Sequence[AssignedShare]) -> SharePlan:
    """The plan of the search, which leaves models where they are if that will do."""
    problem, search = predictor.problem, PlacementSearch(predictor)
    memories = [device.memory_mib for device in problem.devices]
    divided = [search.divider.divide(*each) for each in zip(placement, memories, strict=True)]
    if all(each is not None and each.bears >= 1 for each in divided):
        planned = search.shares(placement)
    else:
        planned, _ = search.run(time_limit_s=1.0, progress=_Steps(), start=placement)
    steady = steady_batches(planned, present, [model.max_batch for model in problem.models])
    return build_plan(predictor, steady if _fits(predictor, steady) else planned, {}, None)


class _Steps:
    """Clock of a planner that advances with each question, as controllers have no clock."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self, *, objective: float | None = None, bound: float | None = None) -> float:
        del objective, bound
        self._asked += 1
        return self._asked / 150


def _fits(predictor: Predictor, shares: list[AssignedShare]) -> bool:
    """Whether every GPU's memory holds its processes."""
    problem = predictor.problem
    return all(
        why_not(mine, problem.units_per_gpu, device.memory_mib, [predictor.takes_mib(share) for share in mine]) is None
        for mine, device in zip(by_gpu(shares, len(problem.devices)), problem.devices, strict=True)
    )


def _check_memory(predictor: Predictor, present: Sequence[AssignedShare], wanted: Sequence[AssignedShare]) -> None:
    """Check that every GPU has memory for the current processes and those that start beside them."""
    started = list((Counter(wanted) - Counter(present)).elements())
    devices = predictor.problem.devices
    for device, old, new in zip(devices, by_gpu(present, len(devices)), by_gpu(started, len(devices)), strict=True):
        taken_mib = sum(predictor.takes_mib(share) for share in (*old, *new))
        if new and device.memory_mib is not None and taken_mib > device.memory_mib:
            raise PlanningError(
                f"{device.node}/{device.id}: the current and the new processes take {taken_mib:.0f} MiB, and it has "
                f"{device.memory_mib}: leave memory for a change, with smaller batches or fewer models on a GPU"
            )
