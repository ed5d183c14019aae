"""Scenarios whose requests have shapes: drawn by their shares, true by their times, told to policies or not."""

from collections import Counter
from typing import Any

import pytest

from tidegate.api import ms_to_ns
from tidegate.sim.build import setup_of
from tidegate.sim.run import RunSpec, simulate
from tidegate.sim.true_latency import drawing_factors
from tidegate.workload import PolicyChoice, Scenario, draw_requests
from tidegate.workload.simulated import JitterSpec, StallSpec

SHAPES = [
    {"shape": "x:3,48,320", "weight": 3},
    {"shape": "x:3,48,640", "latency_factor": 2, "known_to_policy": False},
    {"shape": "x:3,48,960", "profile": {"alpha_ms": 4, "beta_ms": 1}},
]
DOCUMENT: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 20,
    "workers": [{"count": 2}],
    "models": [{"name": "m", "slo_ms": 50, "profile": {"alpha_ms": 1, "beta_ms": 4, "max_batch": 8}, "shapes": SHAPES}],
    "arrivals": {"rate_rps": 100},
}


def scenario(**changes: object) -> Scenario:
    return Scenario.model_validate(DOCUMENT | changes)


def test_policies_are_told_of_those_that_they_are_to_be_told_of() -> None:
    latency_ns = {profile.shape: profile.upper_ns(2) for profile in setup_of(scenario(), 0).profiles}
    assert latency_ns == {"": ms_to_ns(6), "x:3,48,320": ms_to_ns(6), "x:3,48,960": ms_to_ns(9)}


def test_each_comes_as_often_as_its_share_says_whatever_else_is_drawn() -> None:
    requests = draw_requests(scenario(), 1)
    drawn = Counter(request.shape for request in requests)
    assert drawn["x:3,48,320"] / len(requests) == pytest.approx(0.6, abs=0.03)
    assert drawn["x:3,48,640"] == pytest.approx(drawn["x:3,48,960"], rel=0.2)
    plain = scenario(models=[{**DOCUMENT["models"][0], "shapes": []}])
    assert [request.arrival_ns for request in draw_requests(plain, 1)] == [request.arrival_ns for request in requests]


def test_batches_take_as_long_as_their_shape() -> None:
    """Alone on idle workers each takes what the truth says, told or not."""
    slow = scenario(arrivals={"process": "uniform", "rate_rps": 10}, simulation={"learn": False})
    result = simulate(RunSpec(slow, PolicyChoice(name="fifs"), 1, gantt_s=20))
    took_ms = {
        (request.shape, round((bar.end_s - bar.start_s) * 1000, 6))
        for request, bar in zip(draw_requests(slow, 1), result.gantt, strict=True)
    }
    assert took_ms == {("x:3,48,320", 5), ("x:3,48,640", 10), ("x:3,48,960", 5)}


def test_more_shapes_than_are_told_apart_are_still_true() -> None:
    many = [{"shape": f"x:{width}", "latency_factor": width / 100} for width in range(100, 200)]
    crowded = scenario(
        models=[{**DOCUMENT["models"][0], "shapes": many}], arrivals={"process": "uniform", "rate_rps": 10}
    )
    result = simulate(RunSpec(crowded, PolicyChoice(name="fifs"), 1, gantt_s=20))
    for request, bar in zip(draw_requests(crowded, 1), result.gantt, strict=True):
        assert bar.end_s - bar.start_s == pytest.approx(0.005 * int(request.shape[2:]) / 100)


def test_a_stall_is_drawn_for_each_stage_by_itself() -> None:
    stalls, jitter = StallSpec(probability=0.1), JitterSpec(cv=0.1)
    draw = drawing_factors(None, stalls, 1, 0)
    assert draw is not None
    drawn = Counter(draw() for _ in range(5000))
    assert set(drawn) == {1, 10}
    assert drawn[10] == pytest.approx(500, rel=0.2)
    both, jitter_only = drawing_factors(jitter, stalls, 1, 0), drawing_factors(jitter, None, 1, 0)
    assert both is not None and jitter_only is not None
    factors = [both() / jitter_only() for _ in range(1000)]
    assert {round(factor, 6) for factor in factors} == {1, 10}, "neither moves the other"
    assert drawing_factors(None, None, 1, 0) is None


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ([{"shape": "a", "latency_factor": 2, "profile": {"alpha_ms": 1, "beta_ms": 1}}], "give times, profile"),
        ([{"shape": "a"}, {"shape": "a"}], "shapes: two have one name"),
        ([{"shape": "a", "weight": 0}], "shapes: all of them have the weight 0"),
        ([{"shape": "a", "latency_factor": 0}], "greater than 0"),
        ([{"name": "a"}], "shape"),
    ],
)
def test_what_is_wrong_with_shapes_is_said(shapes: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        scenario(models=[{**DOCUMENT["models"][0], "shapes": shapes}])
