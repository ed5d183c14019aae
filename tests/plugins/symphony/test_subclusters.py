"""Sub-clusters: as good as trying everything, within every limit, and clear where there is no plan."""

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.plugins.ticks import Ticks
from tidegate.api import Plan, PlanningError
from tidegate_symphony.subclusters import plan_randomly, plan_subclusters
from tidegate_symphony.subclusters_plan import PlannedModel, SubclusterPlan, SubclusterProblem

SOLVERS = ("cbc", "highs")


def problem(models: Sequence[tuple[float, float, float]], **fields: Any) -> SubclusterProblem:
    planned = tuple(
        PlannedModel(name=f"m{i}", rate_rps=r, static_mib=s, dynamic_mib=d) for i, (r, s, d) in enumerate(models)
    )
    return SubclusterProblem.model_validate(
        {"subclusters": 2, "max_rate_rps": 1000, "max_memory_mib": 1000, "models": planned, **fields}
    )


def best_of_all(task: SubclusterProblem) -> float:
    """The least objective of every assignment that keeps the limits, from the paper's equations; infinite for none."""
    places = range(task.subclusters)
    total_rate = sum(m.rate_rps for m in task.models)
    total_static = sum(m.static_mib for m in task.models)
    weight = (total_rate / total_static if total_static else 0) if task.weight is None else task.weight
    least = math.inf
    for assignment in itertools.product(places, repeat=len(task.models)):
        there = [[m for m, place in zip(task.models, assignment, strict=True) if place == j] for j in places]
        rates = [sum(m.rate_rps for m in group) for group in there]
        statics = [sum(m.static_mib for m in group) for group in there]
        memory = [s + max((m.dynamic_mib for m in group), default=0) for s, group in zip(statics, there, strict=True)]
        if max(rates) > task.max_rate_rps or max(memory) > task.max_memory_mib:
            continue
        if task.max_move_cost is not None and cost(task, assignment) > task.max_move_cost:
            continue
        off_rate = max(abs(rate - total_rate / task.subclusters) for rate in rates)
        off_static = max(abs(static - total_static / task.subclusters) for static in statics)
        least = min(least, off_rate + weight * off_static)
    return least


def cost(task: SubclusterProblem, assignment: Sequence[int]) -> float:
    """Left side of equation 10, term by term."""
    previous = task.previous or {}
    return sum(
        model.cost_at(j) * abs((place == j) - (previous.get(model.name) == j))
        for model, place in zip(task.models, assignment, strict=True)
        for j in range(task.subclusters)
    )


def run(task: SubclusterProblem, time_limit_s: float = 5) -> SubclusterPlan:
    return plan_subclusters(task, time_limit_s=time_limit_s, progress=Ticks(tick_s=0.001))


amounts = st.integers(0, 60).map(float)


@st.composite
def problems(draw: st.DrawFn) -> SubclusterProblem:
    """Up to six models among up to three sub-clusters, limits often tight, sometimes too tight."""
    models = draw(st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=6))
    subclusters = draw(st.integers(1, 3))
    fields: dict[str, Any] = {
        "subclusters": subclusters,
        "max_rate_rps": draw(st.integers(20, 200)),
        "max_memory_mib": draw(st.integers(40, 260)),
        "weight": draw(st.sampled_from([None, 0.0, 0.5, 3.0])),
        "solver": draw(st.sampled_from(SOLVERS)),
    }
    if draw(st.booleans()):
        # Sub-cluster 3 is never there any more; some models are new, some are gone.
        names = draw(st.lists(st.sampled_from([f"m{i}" for i in range(7)]), unique=True))
        fields["previous"] = {name: draw(st.integers(0, 3)) for name in names}
        fields["max_move_cost"] = draw(st.integers(0, 8))
    task = problem(models, **fields)
    costs = draw(st.lists(st.integers(0, 3), min_size=subclusters, max_size=subclusters))
    first = task.models[0].model_copy(update={"move_cost": tuple(map(float, costs))})
    return task.model_copy(update={"models": (first, *task.models[1:])})


@settings(max_examples=examples(0.3))
@given(problems())
@example(problem([(21, 0, 0)], max_rate_rps=20, solver="cbc"))  # "Integer infeasible", in CBC's words
def test_no_assignment_is_better_and_every_limit_is_kept(task: SubclusterProblem) -> None:
    least = best_of_all(task)
    if least == math.inf:
        with pytest.raises(PlanningError, match="no assignment keeps every limit"):
            run(task)
        return
    plan = run(task)
    assert plan.objective == pytest.approx(least, rel=1e-4, abs=1e-4)
    assert plan.bound is not None
    assert plan.bound == plan.objective
    assert plan.gap == 0
    assignment = [plan.assignment[model.name] for model in task.models]
    for j, load in enumerate(plan.subclusters):
        there = [model for model, place in zip(task.models, assignment, strict=True) if place == j]
        assert load.models == len(there)
        assert load.rate_rps == pytest.approx(sum(model.rate_rps for model in there))
        assert load.rate_rps <= task.max_rate_rps
        dynamic = max((model.dynamic_mib for model in there), default=0)
        assert load.memory_mib == pytest.approx(sum(model.static_mib for model in there) + dynamic)
        assert load.memory_mib <= task.max_memory_mib
    if task.previous is not None:
        assert plan.move_cost == pytest.approx(cost(task, assignment))
    if task.max_move_cost is not None:
        assert cost(task, assignment) <= task.max_move_cost


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("weight", "alone", "least"), [(0, "m0", 0), (100, "m1", 10)])
def test_the_weight_decides_between_even_rates_and_even_memory(
    solver: str, weight: float, alone: str, least: float
) -> None:
    plan = run(problem([(30, 10, 0), (20, 40, 0), (10, 30, 0)], weight=weight, solver=solver))
    places = list(plan.assignment.values())
    assert [name for name, place in plan.assignment.items() if places.count(place) == 1] == [alone]
    assert plan.objective == least


def test_imbalance_is_the_range_over_the_mean() -> None:
    plan = run(problem([(100, 98, 0), (60, 420, 0), (40, 528, 0)]))
    assert plan.rate_imbalance == pytest.approx((140 - 60) / 100)
    assert plan.memory_imbalance == pytest.approx((626 - 420) / 523)
    assert plan.gap == 0


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("max_move_cost", "moved"), [(0, 0), (2, 1), (4, 2), (100, 2)])
def test_a_new_plan_moves_no_more_than_it_may(solver: str, max_move_cost: int, moved: int) -> None:
    previous = {f"m{i}": 0 for i in range(4)}
    task = problem([(10, 10, 0)] * 4, previous=previous, max_move_cost=max_move_cost, solver=solver)
    plan = run(task)
    assert sum(place != 0 for place in plan.assignment.values()) == moved
    assert plan.move_cost == 2 * moved  # each is unloaded here and loaded there


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_rate_rps": 15}, "max_rate_rps 15 is too little, 20 would do"),
        ({"max_memory_mib": 12}, "max_memory_mib 12 is too little, 25 would do"),
        (
            {"max_rate_rps": 20, "previous": {"m0": 0, "m1": 0, "m2": 0, "m3": 0}, "max_move_cost": 3},
            "max_rate_rps 20 is too little, 30 would do; or max_move_cost 3 is too little, 4 would do",
        ),
        ({"max_rate_rps": 15, "max_memory_mib": 12}, "nor with any one of them wider: max_rate_rps, max_memory_mib"),
    ],
)
def test_where_there_is_no_plan_the_limit_is_named(solver: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanningError) as error:
        run(problem([(10, 10, 5)] * 4, solver=solver, **fields))
    assert said in str(error.value)


def test_a_solver_that_crashes_leaves_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import pulp

    def crash(*_: object, **__: object) -> None:
        raise pulp.PulpSolverError("segmentation fault")

    monkeypatch.setattr(pulp.LpProblem, "solve", crash)
    task = problem([(10, 10, 0), (10, 10, 0)], solver="cbc")
    assert sorted(run(task).assignment.values()) == [0, 1]
    with pytest.raises(PlanningError, match="found no plan in 5 s, and no proof that there is none"):
        run(problem([(5, 0, 0), (6, 0, 0), (4, 0, 0), (5, 0, 0)], max_rate_rps=9.99, solver="cbc"))


def test_without_cbc_the_other_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import pulp

    monkeypatch.setattr(pulp.COIN_CMD, "available", lambda _: False)
    with pytest.raises(PlanningError, match="choose solver highs"):
        run(problem([(1, 1, 1)], solver="cbc"))


def test_without_the_solver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pulp", None)
    with pytest.raises(PlanningError, match=r'pip install "tidegate-symphony\[planner\]"'):
        run(problem([(1, 1, 1)]))


def test_bounds_are_told_once_there_are_any() -> None:
    """HiGHS has minus infinity for one before it solved a relaxation."""
    ticks = Ticks(tick_s=0.001)
    task = problem([(7 * i % 31 + 1.5, 11 * i % 53 + 2.5, 5.0) for i in range(30)], subclusters=4)
    plan = plan_subclusters(task, time_limit_s=1, progress=ticks)
    assert ticks.bounds
    assert all(0 <= bound <= plan.objective * (1 + 1e-6) for bound in ticks.bounds)


@pytest.mark.parametrize("solver", SOLVERS)
def test_progress_hears_of_plans_and_a_large_problem_ends_on_time_far_more_even_than_random(solver: str) -> None:
    models = [(7.0 * (i % 13) + i % 5, 11.0 * (i % 17), 5.0 * (i % 3)) for i in range(120)]
    task = problem(models, subclusters=6, max_rate_rps=5000, max_memory_mib=5000, solver=solver)
    ticks = Ticks(tick_s=0.001)
    even = plan_subclusters(task, time_limit_s=1, progress=ticks)
    rough = plan_randomly(task, time_limit_s=1, progress=Ticks(tick_s=0.001))
    assert ticks.objectives
    assert even.objective <= min(ticks.objectives) * (1 + 1e-6)
    assert even.objective < rough.objective / 5
    assert even.gap is not None


def test_random_is_the_same_with_the_same_seed_and_better_with_more_time() -> None:
    models = [(float(i), float(50 - i), 1.0) for i in range(50)]
    task = problem(models, max_rate_rps=10_000, max_memory_mib=10_000)

    def random_plan(seed: int, draws: int) -> Plan:
        seeded = task.model_copy(update={"seed": seed})
        return plan_randomly(seeded, time_limit_s=draws, progress=Ticks(tick_s=1))

    assert random_plan(0, 50) == random_plan(0, 50) != random_plan(1, 50)
    assert random_plan(0, 400).objective < random_plan(0, 3).objective
    assert random_plan(0, 50).gap is None


def test_random_says_which_limit_its_draws_broke() -> None:
    with pytest.raises(PlanningError, match=r"none of 9 random assignments .* most broke max_rate_rps, 5"):
        plan_randomly(problem([(10, 1, 0)] * 3, max_rate_rps=5), time_limit_s=10, progress=Ticks(tick_s=1))


def test_costs_are_one_number_or_one_per_subcluster() -> None:
    model = {"name": "m", "rate_rps": 1, "static_mib": 1, "move_cost": [1, 2, 3]}
    with pytest.raises(ValueError, match="move_cost of m has 3 entries"):
        SubclusterProblem.model_validate({"subclusters": 2, "models": [model], "max_rate_rps": 1, "max_memory_mib": 1})
