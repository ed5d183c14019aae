"""The sample of the benchmark of recommendations, and what it calls worse."""

from dataclasses import replace

import pytest

from bench.recommend_never_worse import WORKLOADS, Followed, drawn_scenario, question_of
from tidegate.sim.interval import Interval


def test_workloads_are_the_same_whenever_they_are_drawn() -> None:
    drawn = [drawn_scenario(1, number) for number in range(WORKLOADS)]
    assert drawn == [drawn_scenario(1, number) for number in range(WORKLOADS)]
    assert len({scenario.name for scenario in drawn}) > WORKLOADS / 2
    _, question = question_of(1, 0, 300)
    assert (question.recording, question.current) == (None, None)


@pytest.mark.parametrize(
    ("gain", "worse"),
    [
        (Interval(-0.01, -0.02, -0.005), True),
        (Interval(-0.01, -0.02, 0.001), False),
        (Interval(0.01, 0.0, 0.02), False),
    ],
)
def test_worse_is_what_chance_does_not_explain(gain: Interval, worse: bool) -> None:
    followed = Followed(0, "", "triton", "run", "eager", None, 0.9, 0.9, gain, 1)
    assert followed.is_worse == worse
    assert not replace(followed, gain=Interval(-0.001, -0.001, -0.001)).is_worse
