"""The start of the search: even, within the limits, and with what a move may cost well spent."""

from collections.abc import Sequence
from typing import Any

from tidegate_symphony.subclusters_plan import PlannedModel, SubclusterProblem
from tidegate_symphony.subclusters_start import start_from


def start(models: Sequence[tuple[float, float]], **fields: Any) -> list[int] | None:
    """Of models given as (rate, cost of loading)."""
    planned = [
        PlannedModel(name=f"m{i}", rate_rps=rate, static_mib=1, move_cost=cost) for i, (rate, cost) in enumerate(models)
    ]
    problem = SubclusterProblem.model_validate(
        {"subclusters": 2, "max_rate_rps": 100, "max_memory_mib": 100, "models": planned, **fields}
    )
    return start_from(problem, time_limit_s=1, progress=lambda **_: 0.0)


def test_the_largest_goes_first() -> None:
    found = start([(10, 1), (10, 1), (20, 1)])
    assert found is not None
    assert found[0] == found[1] != found[2]


def test_a_model_whose_move_costs_too_much_stays_and_another_goes() -> None:
    assert start([(20, 5), (10, 1)], previous={"m0": 0, "m1": 0}, max_move_cost=2) == [0, 1]


def test_new_models_and_those_of_a_lost_subcluster_go_where_there_is_least() -> None:
    assert start([(30, 1), (10, 1), (10, 1)], previous={"m0": 0, "m1": 7}, max_move_cost=2) == [0, 1, 1]


def test_where_it_leads_to_no_assignment_there_is_none() -> None:
    assert start([(10, 1), (10, 1), (10, 1)], max_rate_rps=15) is None
