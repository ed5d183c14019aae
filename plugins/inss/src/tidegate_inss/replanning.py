"""Replanning of MPS shares when current ones cannot sustain the rates, for the controller `share-replanning`.

Models stay on their GPUs if other shares there suffice, because a model that moves or gets another share is loaded
again. Only otherwise the search, starting from the current placement, moves models.
"""

from collections.abc import Sequence

from tidegate.schemas import Layout
from tidegate_inss.build_plan import borne_by, build_plan
from tidegate_inss.current_state import shares_of, steady_batches
from tidegate_inss.gpu_partition import ModelPiece
from tidegate_inss.layout import layout_of
from tidegate_inss.plan import SharePlan
from tidegate_inss.planner_registry import share_planner
from tidegate_inss.prediction import AssignedShare, Predictor, by_gpu, why_not
from tidegate_inss.problem import ShareProblem
from tidegate_inss.search import Placement, PlacementSearch


def replanned(problem: ShareProblem, layout: Layout, planner: str) -> Layout | None:
    """Return a layout that sustains the problem's rates, or more of them; None if the current one does or none is
    better.

    `planner`: name of the planner; `shares` starts from the current placement. Raises PlanningError if there is no
    plan.
    """
    present = shares_of(problem, layout)
    predictor = Predictor(problem)
    placement, bears = _placement(predictor, present)
    if bears >= 1:
        return None
    if planner == "shares":
        plan = _searched(predictor, placement, present)
    else:
        plan = share_planner(planner)(problem, time_limit_s=1.0, progress=_Steps())
    return layout_of(problem, plan) if plan.bears > bears else None


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
    """In place of a clock, which controllers have not: so many questions are a second."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self, *, objective: float | None = None, bound: float | None = None) -> float:
        del objective, bound
        self._asked += 1
        return self._asked / 150


def _placement(predictor: Predictor, present: Sequence[AssignedShare]) -> tuple[Placement, float]:
    """Return the placement of models with parts of their requests, and the factor of the rates that is served."""
    problem = predictor.problem
    gpus = by_gpu(present, len(problem.devices))
    bears = [borne_by(predictor, mine) for mine in gpus]
    of_model = [0.0] * len(problem.models)
    for mine, rates in zip(gpus, bears, strict=True):
        for share, rate in zip(mine, rates, strict=True):
            of_model[share.model] += rate
    placement = []
    for mine, rates in zip(gpus, bears, strict=True):
        pieces: dict[int, float] = {}
        for share, rate in zip(mine, rates, strict=True):
            part = rate / of_model[share.model] if of_model[share.model] else 1.0
            pieces[share.model] = pieces.get(share.model, 0.0) + part * problem.models[share.model].rate_rps
        placement.append([ModelPiece(model, max(rate, 1e-6)) for model, rate in pieces.items()])
    return placement, min(rate / model.rate_rps for rate, model in zip(of_model, problem.models, strict=True))


def _fits(predictor: Predictor, shares: list[AssignedShare]) -> bool:
    """Whether every GPU's memory holds its processes."""
    problem = predictor.problem
    return all(
        why_not(mine, problem.units_per_gpu, device.memory_mib, [predictor.takes_mib(share) for share in mine]) is None
        for mine, device in zip(by_gpu(shares, len(problem.devices)), problem.devices, strict=True)
    )
