"""Pipelines of a model, with the data for sizing batches."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise, starmap

from tidegate.api import Model, Pipeline
from tidegate.toolkit import ArrivalRate
from tidegate_ppipe.resources import Resources

BUSY_PART = 0.9
"""Maximum fraction of time that workers are busy at the batch size that the load needs."""
LIGHT_PART = 0.7
"""Fraction of the pipelines' rate, links included, up to which the load is light."""


class SizedPipeline:
    """Pipeline with the data for sizing its batches."""

    __slots__ = ("budget", "max_rows", "merged_rows", "partitions", "planned", "work_by_shape")

    def __init__(self, pipeline: Pipeline) -> None:
        self.partitions = pipeline.partitions
        self.max_rows = pipeline.max_rows
        self.merged_rows = pipeline.max_rows
        """The most rows of a batch of several requests: its model may set less."""
        self.planned = pipeline.partitions
        """The partitions that a batch is planned through before it leaves."""
        self.budget = 1.0
        """The part of a request's time that the planned partitions have."""
        self.work_by_shape: dict[str, Sequence[int]] = {}
        """Latency of the planned partitions without waiting, by shape, by rows - 1; computed on demand."""

    def work_ns(self, shape: str, resources: Resources) -> Sequence[int]:
        """Return the latency in ns of the planned partitions without waiting, by rows - 1.

        Every partition must have a worker.
        """
        known = self.work_by_shape.get(shape)
        if known is None:
            known = self.work_by_shape[shape] = resources.work_ns(self.planned, self.max_rows, shape)
        return known


class ModelPipelines:
    """All pipelines of a model, and their arrival rate."""

    def __init__(self, model: Model, route: Callable[[Pipeline], SizedPipeline]) -> None:
        self.model = model
        self.usable: list[SizedPipeline] = []
        """The routes whose partitions are all hosted somewhere."""
        self.rate = ArrivalRate(0)
        self._all = [route(pipeline) for pipeline in model.paths]
        for each in self._all:
            each.merged_rows = min(each.max_rows, model.merged_rows)
        self._bears_at_most = 0.0
        self._bears: list[float] = []
        """The rows per nanosecond that all routes bear with batches of index + 1 rows: rising, or made so."""

    def use(self, partition: str) -> bool:
        """Whether any pipeline contains a partition."""
        return any(partition in route.partitions for route in self._all)

    def take(self, rows: int) -> bool:
        """Whether a request of `rows` rows fits through a usable pipeline."""
        return any(rows <= route.max_rows for route in self.usable)

    def measure(self, resources: Resources) -> None:
        """Update the pipelines after a change of workers or profiles."""
        self.usable = [route for route in self._all if all(map(resources.hosts, route.partitions))]
        for route in self.usable:
            route.work_by_shape.clear()
        self._bears = []
        for rows in range(1, max((route.merged_rows for route in self.usable), default=0) + 1):
            bears = sum(
                min(resources.rows_per_ns(name, min(rows, route.merged_rows)) for name in route.partitions)
                for route in self.usable
            )
            self._bears.append(max([bears, *self._bears[-1:]]))

        self._bears_at_most = sum(_bears_at_most(route, resources) for route in self.usable)

    @property
    def is_light(self) -> bool:
        """Whether the load is so light that batches need not wait for more requests."""
        return self.rate.rows_per_ns <= LIGHT_PART * self._bears_at_most

    def needed_rows(self) -> int:
        """Return the batch size in rows that the current load needs; the maximum if none suffices."""
        return min(bisect_left(self._bears, self.rate.rows_per_ns / BUSY_PART) + 1, len(self._bears))


def _bears_at_most(route: SizedPipeline, resources: Resources) -> float:
    """Return the rows per ns that its slowest pool, or link between two, sustains with batches of the planned size."""
    pools = (resources.rows_per_ns(name, route.merged_rows) for name in route.partitions)
    return min([*pools, *starmap(resources.link_rows_per_ns, pairwise(route.partitions))])
