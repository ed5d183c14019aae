"""The deadline of a graph is split among its stages: never beyond it, later along every edge, all of it at the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import NEVER_NS
from tidegate.toolkit import StageGraph, stage_deadline_ns


@st.composite
def graphs(draw: st.DrawFn) -> tuple[StageGraph, list[int]]:
    """A graph in which each stage follows some of the earlier ones, and the expected times of its stages."""
    count = draw(st.integers(1, 8))
    before = [draw(st.sets(st.integers(0, stage - 1))) if stage else set() for stage in range(count)]
    return StageGraph(before), draw(st.lists(st.integers(1, 10**9), min_size=count, max_size=count))


@given(graphs(), st.integers(0, 10**12), st.integers(-(10**10), 10**11))
def test_deadlines_of_stages(drawn: tuple[StageGraph, list[int]], now_ns: int, left_ns: int) -> None:
    graph, expected_ns = drawn
    deadline_ns = now_ns + left_ns
    deadlines = graph.deadlines_ns(now_ns, deadline_ns, expected_ns)
    remaining = graph.remaining_ns(expected_ns)
    enough = left_ns >= max(remaining)
    for stage, due_ns in enumerate(deadlines):
        assert due_ns <= deadline_ns
        begins_ns = max((deadlines[before] for before in graph.predecessors[stage]), default=now_ns)
        assert all(deadlines[before] <= due_ns for before in graph.predecessors[stage])
        if enough:  # one nanosecond of each stage may be lost in rounding
            assert due_ns - begins_ns >= expected_ns[stage] - len(graph)
        if not graph.successors[stage]:
            assert due_ns == deadline_ns
    assert max(remaining) >= max(expected_ns)


def test_no_deadline_gives_stages_none_and_a_slow_stage_leaves_less() -> None:
    chain = StageGraph([[], [0], [1]])
    assert chain.deadlines_ns(5, NEVER_NS, [1, 2, 3]) == (NEVER_NS,) * 3
    assert chain.deadlines_ns(0, 60, [10, 20, 30]) == (10, 30, 60)
    on_time, late = (stage_deadline_ns(now_ns, 60, 20, 50) for now_ns in (10, 40))
    assert (on_time - 10, late - 40) == (20, 8)
    branches = StageGraph([[], [0], [0], [1, 2]])
    assert branches.deadlines_ns(0, 100, [10, 30, 10, 10]) == (20, 80, 60, 100)


def test_a_cycle_is_named() -> None:
    with pytest.raises(ValueError, match=r"^(\d) -> \d -> \d -> \1$"):
        StageGraph([[2], [0], [1]])
