"""Other shares where those that serve bear too little: the work of the controller `share-replanning`.

Models stay where they are as long as other shares there will do, for whoever moves is loaded anew; so is whoever gets
another share, MPS being as it is. Only if they will not do is it searched for who should be elsewhere, from here on.
"""

from collections.abc import Sequence

from tidegate.documents import Layout
from tidegate_inss.assignment import Share, by_gpu, why_not
from tidegate_inss.by_name import share_planner
from tidegate_inss.division import Piece
from tidegate_inss.layout import layout_of
from tidegate_inss.plan import SharePlan
from tidegate_inss.plan_of import borne_by, plan_of
from tidegate_inss.prediction import Predictor
from tidegate_inss.present import shares_of, steady_batches
from tidegate_inss.problem import ShareProblem
from tidegate_inss.search import Placement, Search

ROOM = (1.0, 0.75, 0.5, 0.25, 0.0)
"""For which part of its usual rate a model keeps room that is asked for less at present: the first that can be had."""


def replanned(problem: ShareProblem, usual_rps: Sequence[float], layout: Layout, planner: str) -> Layout | None:
    """The layout that bears the problem's rates, or more of them; None: the present one does, or there is no better.

    `usual_rps`: the models' rates over a longer time, in the problem's order. What is asked for less than usual is
    asked for more soon: room that nobody needs at present is left to it. `planner`: the name of who plans; `shares`
    begins from what serves. Raises PlanningError where there is no plan.
    """
    present = shares_of(problem, layout)
    _, bears = _placement(Predictor(problem), present)
    if bears >= 1:
        return None
    for room in ROOM:
        plan = _planned(_with_room(problem, usual_rps, room), present, planner)
        if plan.bears >= (1 if room else bears * (1 + 1e-9)):
            return layout_of(problem, plan)
    return None


def _with_room(problem: ShareProblem, usual_rps: Sequence[float], room: float) -> ShareProblem:
    """The problem with rates of no less than such a part of the usual ones."""
    models = tuple(
        model.model_copy(update={"rate_rps": max(model.rate_rps, room * usual)})
        for model, usual in zip(problem.models, usual_rps, strict=True)
    )
    return problem.model_copy(update={"models": models})


def _planned(problem: ShareProblem, present: Sequence[Share], planner: str) -> SharePlan:
    """The plan for a problem's rates."""
    if planner != "shares":
        return share_planner(planner)(problem, time_limit_s=1.0, progress=_Steps())
    predictor = Predictor(problem)
    placement, _ = _placement(predictor, present)
    search = Search(predictor)
    memories = [device.memory_mib for device in problem.devices]
    divided = [search.divider.divide(*each) for each in zip(placement, memories, strict=True)]
    if all(each is not None and each.bears >= 1 for each in divided):
        planned = search.shares(placement)
    else:
        planned, _ = search.run(time_limit_s=1.0, progress=_Steps(), start=placement)
    steady = steady_batches(planned, present, [model.max_batch for model in problem.models])
    return plan_of(predictor, steady if _fits(predictor, steady) else planned, {}, None)


class _Steps:
    """In place of a clock, which controllers have not: so many questions are a second."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self, *, objective: float | None = None, bound: float | None = None) -> float:
        del objective, bound
        self._asked += 1
        return self._asked / 150


def _placement(predictor: Predictor, present: Sequence[Share]) -> tuple[Placement, float]:
    """Who is where, with which part of its requests, and so many times their rates as they bear."""
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
        placement.append([Piece(model, max(rate, 1e-6)) for model, rate in pieces.items()])
    return placement, min(rate / model.rate_rps for rate, model in zip(of_model, problem.models, strict=True))


def _fits(predictor: Predictor, shares: list[Share]) -> bool:
    """Whether every GPU's memory holds its processes."""
    problem = predictor.problem
    return all(
        why_not(mine, problem.units_per_gpu, device.memory_mib, [predictor.takes_mib(share) for share in mine]) is None
        for mine, device in zip(by_gpu(shares, len(problem.devices)), problem.devices, strict=True)
    )
