"""The deadline of a graph is split among its stages: never beyond it, later along every edge, all of it at the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import NEVER_NS
from tidegate.toolkit import PathTime, StageGraph, stage_deadline_ns


@st.composite
def graphs(draw: st.DrawFn) -> tuple[StageGraph, list[int], list[int]]:
    """A graph in which each stage follows some of the earlier ones, and the times of its stages, alone and batched."""
    count = draw(st.integers(1, 8))
    before = [draw(st.sets(st.integers(0, stage - 1))) if stage else set() for stage in range(count)]
    times = st.lists(st.integers(1, 10**9), min_size=count, max_size=count)
    return StageGraph(before), draw(times), draw(times)


@given(graphs(), st.integers(0, 10**12), st.integers(-(10**10), 10**11))
def test_deadlines_of_stages(drawn: tuple[StageGraph, list[int], list[int]], now_ns: int, left_ns: int) -> None:
    graph, alone_ns, batched_ns = drawn
    deadline_ns = now_ns + left_ns
    deadlines = graph.deadlines_ns(now_ns, deadline_ns, alone_ns, batched_ns)
    longest_ns = max(graph.remaining_ns(alone_ns))
    for stage, due_ns in enumerate(deadlines):
        assert due_ns <= deadline_ns
        begins_ns = max((deadlines[before] for before in graph.predecessors[stage]), default=now_ns)
        assert all(deadlines[before] <= due_ns for before in graph.predecessors[stage])
        if left_ns >= longest_ns:
            assert due_ns - begins_ns >= alone_ns[stage], "where all stages fit, each has what it needs"
        if not graph.successors[stage]:
            assert due_ns == deadline_ns


def test_no_deadline_gives_stages_none_and_a_slow_stage_leaves_less() -> None:
    chain = StageGraph([[], [0], [1]])
    assert chain.deadlines_ns(5, NEVER_NS, [1, 2, 3], [1, 2, 3]) == (NEVER_NS,) * 3
    assert chain.deadlines_ns(0, 60, [1, 2, 3], [10, 20, 30]) == (10, 30, 60)
    assert chain.deadlines_ns(0, 60, [20, 2, 3], [10, 20, 30]) == (20, 36, 60), "the first one needs more than its part"
    assert chain.deadlines_ns(0, 30, [10, 20, 30], [1, 1, 100]) == (5, 15, 30), "too little is split by what each needs"
    on_time, late = (stage_deadline_ns(now_ns, 60, PathTime(2, 5), PathTime(20, 50)) for now_ns in (10, 40))
    assert (on_time - 10, late - 40) == (20, 8)
    branches = StageGraph([[], [0], [0], [1, 2]])
    assert branches.deadlines_ns(0, 100, [1, 3, 1, 1], [10, 30, 10, 10]) == (20, 80, 60, 100)


def test_a_cycle_is_named() -> None:
    with pytest.raises(ValueError, match=r"^(\d) -> \d -> \d -> \1$"):
        StageGraph([[2], [0], [1]])
