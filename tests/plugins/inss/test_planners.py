"""What all planners of shares keep to, on problems drawn by chance; and how good the search is."""

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import few
from tests.plugins.inss.problems import problem, tenant
from tidegate.api import PlanningError
from tidegate_inss.gpu_partition import GpuPartitioner, ModelPiece
from tidegate_inss.layout import layout_of
from tidegate_inss.learned.planner import plan_inss
from tidegate_inss.plan import SharePlan
from tidegate_inss.planners import plan_by_gpulet, plan_by_gslice, plan_by_igniter, plan_shares
from tidegate_inss.prediction import Predictor
from tidegate_inss.problem import ShareProblem
from tidegate_inss.search import PlacementSearch

PLANNERS = [plan_shares, plan_by_gpulet, plan_by_gslice, plan_by_igniter]
NAMES = ("quick", "slow", "calm")


def steps(most: int) -> Callable[..., float]:
    """A clock that counts how often it is asked, so that a search ends after so many steps on any machine."""
    asked = 0

    def progress(*, objective: float | None = None, bound: float | None = None) -> float:
        nonlocal asked
        asked += 1
        return asked / most

    return progress


@st.composite
def problems(draw: st.DrawFn) -> ShareProblem:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    tenants = [
        tenant(
            name,
            draw(st.floats(0.5, 3000)),
            draw(st.floats(6, 500)),
            max_batch=draw(st.sampled_from((1, 4, 32))),
            memory_mib=draw(st.floats(0, 400)),
            memory_per_row_mib=draw(st.floats(0, 20)),
        )
        for name in names
    ]
    memory_mib = draw(st.sampled_from((None, 500, 1000)))
    objective = draw(st.sampled_from(("load", "throughput")))
    return problem(*tenants, gpus=draw(st.integers(1, 3)), memory_mib=memory_mib, objective=objective)


@pytest.mark.parametrize("planner", PLANNERS)
@given(problems())
@settings(max_examples=25, deadline=None)
def test_plans_keep_to_what_there_is(planner: Callable[..., SharePlan], asked: ShareProblem) -> None:
    try:
        plan = planner(asked, time_limit_s=1, progress=steps(30))
    except PlanningError as error:
        assert "no model has a share" in str(error)
        return
    models = {model.name: model for model in asked.models}
    for gpu in plan.gpus:
        processes = {share.process or -number: share for number, share in enumerate(gpu.shares, 1)}
        assert sum(share.units for share in processes.values()) <= 40
        taken = sum(models[share.model].takes_mib(share.batch) for share in gpu.shares)
        assert gpu.device.memory_mib is None or taken <= gpu.device.memory_mib
        assert all(share.batch <= models[share.model].max_batch for share in gpu.shares)
    placed = {share.model for gpu in plan.gpus for share in gpu.shares}
    assert all(model.missing or model.name in placed for model in plan.models)
    assert plan.bound is None or plan.objective <= plan.bound * (1 + 1e-9)
    assert str(len(plan.table)) in plan.summary
    if len(placed) == len(models):
        layout = layout_of(asked, plan)
        assert {name for worker in layout.workers for name in worker.hosts} == placed


@pytest.mark.parametrize("seed", few(range(8), 3))
def test_the_search_is_never_below_the_networks_from_which_it_starts_too(seed: int) -> None:
    rng = Random(seed)
    tenants = (tenant(name, rng.uniform(50, 2500), rng.uniform(10, 300)) for name in NAMES)
    asked = problem(*tenants, gpus=rng.randint(1, 3))
    theirs = plan_inss(asked, time_limit_s=1, progress=steps(30))
    for limit_s in (0, 1):
        plan = plan_shares(asked, time_limit_s=limit_s, progress=steps(30))
        assert plan.objective >= theirs.objective * (1 - 1e-9)


def test_the_search_uses_all_of_every_gpu_and_bears_more_than_others() -> None:
    asked = problem(tenant("quick", 700, 20), tenant("slow", 20, 400), tenant("calm", 300, 60), gpus=2)
    plan = plan_shares(asked, time_limit_s=1, progress=steps(1000))
    assert [sum(share.units for share in gpu.shares) for gpu in plan.gpus] == [40, 40]
    for other in (plan_by_gpulet, plan_by_gslice, plan_by_igniter):
        assert other(asked, time_limit_s=1, progress=steps(1)).objective <= plan.objective


def test_a_model_whose_slo_has_no_room_for_two_batches_is_served_as_seldom_as_it_comes() -> None:
    plan = plan_shares(problem(tenant("slow", 1, 6), gpus=1), time_limit_s=1, progress=steps(30))
    (model,) = plan.models
    assert (model.name, model.missing) == ("slow", "")
    assert model.bears_rps == pytest.approx(10 / (2 * 5 - 6)), (
        "who comes in the first 4 of 5 ms is late: one in a hundred"
    )


def test_the_search_finds_what_trying_everything_finds() -> None:
    asked = problem(tenant("quick", 900, 20), tenant("slow", 15, 400), tenant("calm", 200, 60), gpus=2)
    predictor = Predictor(asked)
    divider, best = GpuPartitioner(predictor), 0.0
    for where in product(range(2), repeat=3):
        pieces = [[ModelPiece(m, asked.models[m].rate_rps) for m in range(3) if where[m] == gpu] for gpu in range(2)]
        found = [divider.divide(each, None) for each in pieces]
        best = max(best, min(each.bears for each in found if each))
    placed, missing = PlacementSearch(predictor).run(time_limit_s=1, progress=steps(1000))
    assert not missing
    assert {share.model for share in placed} == {0, 1, 2}
    assert plan_shares(asked, time_limit_s=1, progress=steps(1000)).objective >= best * (1 - 1e-9)


def test_a_busy_model_is_replicated() -> None:
    plan = plan_shares(problem(tenant("calm", 2500, 60), gpus=2), time_limit_s=1, progress=steps(100))
    assert len(plan.gpus) == 2
    assert plan.gap is not None
    assert plan.gap < 0.02


def test_spare_units_bring_throughput_where_that_is_asked_for() -> None:
    models = (tenant("quick", 100, 20), tenant("slow", 5, 400), tenant("calm", 60, 60))
    load = plan_shares(problem(*models, gpus=2), time_limit_s=1, progress=steps(300))
    full = plan_shares(problem(*models, gpus=2, objective="throughput"), time_limit_s=1, progress=steps(300))
    assert full.throughput_rps > 1.2 * load.throughput_rps
    assert full.objective == full.throughput_rps
    assert all(model.bears_rps >= model.rate_rps for model in full.models)
