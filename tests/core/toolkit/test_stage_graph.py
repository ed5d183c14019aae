"""The deadline of a graph is split among its stages: never beyond it, later along every edge, all of it at the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import NEVER_NS
from tidegate.toolkit.stage_graph import PathTime, StageDeadline, StageGraph, stage_deadline


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
    planned = graph.deadlines(now_ns, deadline_ns, alone_ns, batched_ns)
    deadlines = [each.due_ns for each in planned]
    assert all(each.due_ns <= each.latest_ns <= deadline_ns for each in planned)
    longest_ns = max(graph.remaining_ns(alone_ns))
    for stage, due_ns in enumerate(deadlines):
        assert due_ns <= deadline_ns
        begins_ns = max((deadlines[before] for before in graph.predecessors[stage]), default=now_ns)
        assert all(deadlines[before] <= due_ns for before in graph.predecessors[stage])
        if left_ns >= longest_ns:
            assert due_ns - begins_ns >= alone_ns[stage], "where all stages fit, each has what it needs"
        if not graph.successors[stage]:
            assert due_ns == deadline_ns


def _due(graph: StageGraph, now_ns: int, deadline_ns: int, alone_ns: list[int], batched_ns: list[int]) -> list[int]:
    return [each.due_ns for each in graph.deadlines(now_ns, deadline_ns, alone_ns, batched_ns)]


def test_no_deadline_gives_stages_none_and_a_slow_stage_leaves_less() -> None:
    chain = StageGraph([[], [0], [1]])
    assert _due(chain, 5, NEVER_NS, [1, 2, 3], [1, 2, 3]) == [NEVER_NS] * 3
    first = (150 + 745) // 2  # of a part of 150, and the last moment for the 2 and 3 that follow
    due = [first, (first + (750 - first) * 250 // 600 + 747) // 2, 750]
    assert _due(chain, 0, 750, [1, 2, 3], [100, 200, 300]) == due, "each batch, and 50"
    assert _due(chain, 0, 750, [200, 2, 3], [100, 200, 300])[0] == (200 + 745) // 2, "it needs more than its part"
    assert _due(chain, 0, 30, [10, 20, 30], [1, 1, 100]) == [5, 15, 30], "too little is split by what each needs"
    on_time, late = (stage_deadline(now_ns, 60, PathTime(2, 5), PathTime(20, 50)) for now_ns in (10, 40))
    assert (on_time, late) == (StageDeadline(43, 57), StageDeadline(52, 57))
    branches = StageGraph([[], [0], [0], [1, 2]])
    due = _due(branches, 0, 1000, [1, 3, 1, 1], [100, 300, 100, 100])
    assert due[0] < due[2] < due[1] < due[3] == 1000


def test_a_cycle_is_named() -> None:
    with pytest.raises(ValueError, match=r"^(\d) -> \d -> \d -> \1$"):
        StageGraph([[2], [0], [1]])
