"""Graphs of stages with one deadline: order, longest remaining paths, and the deadline of each stage.

The part of a stage in the time left is in proportion to its largest batch: under load a stage whose batches take long
makes requests wait, so the stages before it must leave time for that, or give up early. But policies promise each stage
at a high quantile, and no sum of quantiles fits its parts: so a stage is due midway between its part and the instant at
which what follows, alone, would just fit.
"""

from collections.abc import Collection, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from tidegate.api import NEVER_NS

EXTRA_FRACTION: Final = 0.25
"""Weight of every stage beside that of its largest batch, as a fraction of the mean largest batch."""


class StageGraph:
    """Directed acyclic graph of stages, which are numbered from 0."""

    def __init__(self, predecessors: Sequence[Collection[int]]) -> None:
        """Create a graph. Raises ValueError for a cycle, with the numbers of its stages.

        `predecessors`: for each stage the stages that must end before it starts.
        """
        try:
            order = tuple(TopologicalSorter(dict(enumerate(predecessors))).static_order())
        except CycleError as error:
            raise ValueError(" -> ".join(map(str, error.args[1]))) from error
        self.predecessors = tuple(frozenset(before) for before in predecessors)
        self.order = order
        """Stages in an order in which each follows its predecessors."""
        successors: list[list[int]] = [[] for _ in predecessors]
        for stage, before in enumerate(self.predecessors):
            for earlier in before:
                successors[earlier].append(stage)
        self.successors = tuple(map(tuple, successors))

    def __len__(self) -> int:
        return len(self.predecessors)

    def remaining_ns(self, expected_ns: Sequence[int]) -> tuple[int, ...]:
        """Return for each stage the time of the longest path that begins with it, its own time included.

        `expected_ns`: expected time of each stage.
        """
        remaining = list(expected_ns)
        for stage in reversed(self.order):
            remaining[stage] += max((remaining[later] for later in self.successors[stage]), default=0)
        return tuple(remaining)

    def path_times(self, expected_ns: Sequence[int]) -> "list[PathTime]":
        """Return the time of each stage and of its longest path. `expected_ns`: expected time of each stage."""
        return list(map(PathTime, expected_ns, self.remaining_ns(expected_ns)))

    def split_weights(self, batched_ns: Sequence[int]) -> "list[PathTime]":
        """Return the weights by which `stage_deadline` splits time: each stage's largest batch, plus a constant.

        `batched_ns`: expected time of each stage for the largest batch; 0: the stage does not run.
        """
        extra_ns = round(EXTRA_FRACTION * max(self.remaining_ns(batched_ns)) / len(self))
        return self.path_times([each_ns + extra_ns if each_ns else 0 for each_ns in batched_ns])

    def deadlines(
        self, now_ns: int, deadline_ns: int, alone_ns: Sequence[int], batched_ns: Sequence[int]
    ) -> "tuple[StageDeadline, ...]":
        """Return the deadline of each stage if each starts at the last deadline of its predecessors.

        Args:
            now_ns: start of the first stages.
            deadline_ns: deadline of the whole graph; NEVER_NS: none.
            alone_ns: expected time of each stage for the request alone.
            batched_ns: expected time of each stage for the largest batch.
        """
        alone, weights = self.path_times(alone_ns), self.split_weights(batched_ns)
        deadlines = [StageDeadline(deadline_ns, deadline_ns)] * len(self)
        for stage in self.order:
            start_ns = max((deadlines[before].due_ns for before in self.predecessors[stage]), default=now_ns)
            deadlines[stage] = stage_deadline(start_ns, deadline_ns, alone[stage], weights[stage])
        return tuple(deadlines)


class PathTime(NamedTuple):
    """Expected time of a stage, and of the longest path that begins with it."""

    stage_ns: int
    path_ns: int


class StageDeadline(NamedTuple):
    """Deadline of a stage, and the last instant that helps its graph."""

    due_ns: int
    """Instant at which the stage should end."""
    latest_ns: int
    """Instant until which it may end for the whole graph to be on time, if later stages run alone and at once."""


def stage_deadline(now_ns: int, deadline_ns: int, alone: PathTime, weights: PathTime) -> StageDeadline:
    """Return the deadline of a stage that starts now: midway between its part of the time left and the last moment.

    Never beyond the graph's deadline. A stage has too little time exactly if its longest remaining path has.

    Args:
        now_ns: start of the stage.
        deadline_ns: deadline of the whole graph; NEVER_NS: none.
        alone: times for the request alone, the least that the stage and the stages after it get.
        weights: weights by which the time that is left is split (`StageGraph.split_weights`).
    """
    if deadline_ns == NEVER_NS or deadline_ns <= now_ns:
        return StageDeadline(deadline_ns, deadline_ns)
    left_ns = deadline_ns - now_ns
    if left_ns < alone.path_ns:
        due_ns = now_ns + left_ns * alone.stage_ns // alone.path_ns
        return StageDeadline(due_ns, due_ns)
    latest_ns = left_ns - (alone.path_ns - alone.stage_ns)
    part_ns = min(latest_ns, max(alone.stage_ns, left_ns * weights.stage_ns // max(1, weights.path_ns)))
    return StageDeadline(now_ns + (part_ns + latest_ns) // 2, now_ns + latest_ns)
