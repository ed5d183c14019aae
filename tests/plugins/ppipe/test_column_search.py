"""Columns and counts find what the paper's own program finds."""

import pytest

from tests.plugins.ppipe.a2 import A2
from tests.plugins.ppipe.problems import GATHER_RPS, columns_in, random_problem, two_classes
from tests.plugins.ticks import Ticks
from tidegate.api import PlanningError
from tidegate_ppipe.column_search import price, worth_it
from tidegate_ppipe.planners import plan_ppipe
from tidegate_ppipe.problem import PpipeProblem
from tidegate_ppipe.rounding import gpus_of, rates_of, rounded


def tiny(seed: int) -> PpipeProblem:
    """Few enough GPUs for the paper's program, and batches that gather at a known rate."""
    problem = random_problem(seed, gap=0, max_batch=2)
    return problem.model_copy(
        update={
            "classes": tuple(gpu.model_copy(update={"count": min(gpu.count, 3)}) for gpu in problem.classes[:2]),
            "models": tuple(model.model_copy(update={"batch_rate_rps": GATHER_RPS}) for model in problem.models[:2]),
        }
    )


SEEDS = [
    pytest.param(seed, marks=pytest.mark.slow if seed in {6, 7, 8, 10, 11, 16, 18, 20, 21} else ())
    for seed in range(24)
]
"""Those are marked whose programs take seconds."""


@pytest.mark.parametrize("seed", SEEDS)
def test_the_papers_program_has_the_same_optimum_where_gpus_come_whole(seed: int) -> None:
    problem = tiny(seed)
    paper = A2(problem, [GATHER_RPS] * len(problem.models), whole_gpus=True, copies=2).solve()
    assert paper.bound == pytest.approx(paper.value, rel=1e-5)
    try:
        plan = plan_ppipe(problem, time_limit_s=600, progress=Ticks())
    except PlanningError:
        assert paper.value == pytest.approx(0)
        return
    assert plan.objective == pytest.approx(paper.value, rel=1e-4)
    assert plan.gap == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_of_gpus_bound_equation_23(seed: int) -> None:
    problem = tiny(seed)
    paper = A2(problem, [GATHER_RPS] * len(problem.models), whole_gpus=False, copies=1).solve()
    columns = columns_in(problem, exact=False)
    if {column.model for column in columns} != set(range(len(problem.models))):
        assert paper.value == pytest.approx(0)
        return
    prices = price(problem, columns)
    assert prices is not None
    assert prices.objective >= paper.value * (1 - 1e-6)
    every = price(problem, columns_in(problem, exact=True))
    assert every is not None
    assert every.objective == pytest.approx(prices.objective), "a column that parts of GPUs need was left out"


def test_what_the_linear_program_uses_costs_nothing_more_and_is_worth_it() -> None:
    problem = two_classes()
    columns = columns_in(problem, exact=True)
    prices = price(problem, columns)
    assert prices is not None
    used = [index for index, rate in enumerate(prices.rates_rps) if rate > 1e-9]
    assert prices.reduced[used] == pytest.approx([0.0] * len(used), abs=1e-9)
    assert (prices.reduced >= 0).all()
    near = price(problem, [columns[index] for index in worth_it(problem, columns, prices)])
    assert near is not None
    assert near.objective == pytest.approx(prices.objective)
    assert len(worth_it(problem, columns, prices)) < len(columns)


def test_a_start_fits_and_is_nearly_all_where_gpus_are_many() -> None:
    for times, least in ((5, 0.7), (5000, 0.999)):
        given = two_classes()
        classes = tuple(gpu.model_copy(update={"count": gpu.count * times}) for gpu in given.classes)
        problem = given.model_copy(update={"classes": classes})
        columns = columns_in(problem, exact=False)
        prices = price(problem, columns)
        assert prices is not None
        workers = rounded(problem, columns, prices.rates_rps)
        assert workers is not None
        gpus = gpus_of(columns, workers)
        assert all(gpus[number] <= gpu.count for number, gpu in enumerate(problem.classes))
        assert sum(rates_of(columns, workers)) >= prices.objective * least
