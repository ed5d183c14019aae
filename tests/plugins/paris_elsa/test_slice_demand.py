"""PARIS's Algorithm 1, step by step, with the numbers of the paper."""

import pytest

from tests.plugins.paris_elsa.problems import problem, unhurried
from tidegate_paris_elsa.planners import plan_paris
from tidegate_paris_elsa.problem import MigModel, SliceProfile
from tidegate_paris_elsa.slices import instances, knee_of, segments_of, work_s

FIGURE_8 = {1: 0.2, 2: 0.2, 3: 0.4, 4: 0.2}
"""The shares of the sizes."""
SMALL_RPS = {1: 40.0, 2: 20.0}
LARGE_RPS = {3: 30.0, 4: 20.0}
"""Figure 8 (b): with these the large ones are the 2.3 of the text."""


def test_the_worked_example_of_figure_8() -> None:
    segments = segments_of([2, 4], 4)
    assert segments == [(1, 2), (3, 4)]
    small = work_s(FIGURE_8, segments[0], lambda rows: SMALL_RPS[rows])
    large = work_s(FIGURE_8, segments[1], lambda rows: LARGE_RPS[rows])
    assert 100 * small == pytest.approx(0.5 + 1.0)
    assert 100 * large == pytest.approx(40 / 30 + 20 / 20)
    assert round(100 * large, 1) == 2.3
    sizes = [1, 3]
    counts = instances(sizes, [small, large], 17)
    assert counts[0] / counts[1] == pytest.approx(1.5 / (7 / 3))
    assert sum(size * count for size, count in zip(sizes, counts, strict=True)) == pytest.approx(17)


def test_the_planner_wants_what_figure_8_says() -> None:
    """Through the documents: knees by utilization, latencies as the reverse of throughputs, GPCs 1 and 2 on one GPU."""
    small = SliceProfile(
        slice_type="1g.5gb", rows=(1, 2, 3, 4), latency_ms=(25, 50, 75, 100), utilization=(0.5, 0.8, 0.95, 1.0)
    )
    large = SliceProfile(
        slice_type="2g.10gb", rows=(1, 2, 3, 4), latency_ms=(20, 30, 100 / 3, 50), utilization=(0.3, 0.5, 0.7, 0.9)
    )
    example = MigModel(name="m", slo_ms=1000, sizes={1: 20, 2: 20, 3: 40, 4: 20}, profiles=(small, large))
    plan = plan_paris(problem(example, count=1, segments="knees"), time_limit_s=5, progress=unhurried)
    first, second = plan.models[0].segments
    assert (first.knee, first.knee_from, first.rows) == (2, "utilization", (1, 2))
    assert (second.knee, second.knee_from, second.rows) == (4, "utilization", (3, 4))
    assert 100 * first.work_s == pytest.approx(1.5)
    assert 100 * second.work_s == pytest.approx(7 / 3)
    assert first.wanted / second.wanted == pytest.approx(1.5 / (7 / 3))
    assert first.wanted + 2 * second.wanted == pytest.approx(7)
    # 1.70 and 2.65 are wanted of 7 GPCs, and 1 + 3 bear more than 3 + 2: 100 requests a second need 1.5 and 2.33.
    assert plan.models[0].slices == {"A100-40GB/1g.5gb": 1, "A100-40GB/2g.10gb": 3}


@pytest.mark.parametrize(
    ("used", "knee"), [((0.8, 0.9, 1.0), 1), ((0.2, 0.8, 1.0), 2), ((0.1, 0.3, 0.9), 4), ((0.1, 0.4, 0.5), 2)]
)
def test_a_knee_is_where_utilization_nears_its_highest(used: tuple[float, ...], knee: int) -> None:
    profile = SliceProfile(slice_type="1g.5gb", rows=(1, 2, 4), latency_ms=(1, 2, 4), utilization=used)
    assert knee_of(profile, utilization=0.8, gain=0.5) == (knee, "utilization")


@pytest.mark.parametrize(
    ("latency_ms", "knee"),
    [
        ((10, 10, 10, 20), 4),  # rows are free until there are four
        ((10, 20, 40, 80), 1),  # a row takes as long wherever it is
        ((10, 12, 18, 40), 2),
        ((10, 12, 14, 16), 8),  # it never bends: as many as were measured
    ],
)
def test_without_utilization_a_knee_is_where_more_rows_bring_less_than_half_as_much_again(
    latency_ms: tuple[float, ...], knee: int
) -> None:
    profile = SliceProfile(slice_type="1g.5gb", rows=(1, 2, 4, 8), latency_ms=latency_ms)
    assert knee_of(profile, utilization=0.8, gain=0.5) == (knee, "latency")


def test_the_last_kind_takes_everything_above_and_knees_never_fall() -> None:
    assert segments_of([2, 1, 8, 4], 32) == [(1, 2), (3, 2), (3, 8), (9, 32)]
    assert segments_of([4, 64], 32) == [(1, 4), (5, 32)]
    assert segments_of([64, 64], 32) == [(1, 32), (33, 32)]
