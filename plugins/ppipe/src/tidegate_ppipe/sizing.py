"""Sizing of batches: pipelines of a model, and the pipeline and rows of the next batch (PPipe, Algorithm 1)."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise, starmap

from tidegate.api import NEVER_NS, Model, Pipeline, Request
from tidegate.toolkit import ArrivalRate, RequestQueue
from tidegate_ppipe.resources import Resources
from tidegate_ppipe.routes import ON_TIME_DEVIATIONS, BatchRoute

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


SURE_DEVIATIONS = 2
"""Spare time of a batch in standard deviations of its route, if the deadline allows it."""


class SizedBatch:
    """A batch that could leave, with its pipeline and route."""

    __slots__ = ("count", "due_ns", "path", "route", "rows", "shape", "size")

    def __init__(
        self, route: SizedPipeline, shape: str, size: int, count: int, rows: int, due_ns: int, path: BatchRoute
    ) -> None:
        self.route = route
        self.shape = shape
        """The shape of its requests."""
        self.size = size
        """The rows that could be on time."""
        self.count = count
        """Number of waiting requests, up to this many rows."""
        self.rows = rows
        """The rows of these requests."""
        self.due_ns = due_ns
        """The earliest of their deadlines."""
        self.path = path
        """The path that was found for them."""


class Sizing:
    """Choice of the next batch of a queue: its size and its path (PPipe, Algorithm 1)."""

    def __init__(self, resources: Resources, *, reserve_ns: int, least_part: float | None) -> None:
        """Create the sizing.

        `reserve_ns`: time in ns reserved before every deadline. `least_part`: as the option of that name.
        """
        self._resources = resources
        self._reserve_ns = reserve_ns
        self._least_part = least_part

    def best(self, now_ns: int, queue: RequestQueue, routes: ModelPipelines) -> SizedBatch | None:
        """Return the batch that Algorithm 1 chooses at `now_ns`; None: drop the oldest request."""
        usable, needed = routes.usable, routes.needed_rows()
        if len(usable) > 1:
            usable = self._by_waiting(now_ns, usable, queue.shape)
        for route in usable:
            if queue.head.rows <= route.max_rows and (found := self._largest(now_ns, queue, route)):
                least = needed if self._least_part is None else self._least_part * route.merged_rows
                if found.size >= min(least, route.merged_rows, queue.rows):
                    return found
        return None

    def due_ns(self, request: Request, budget: float) -> int:
        """Return the time in ns by which a request must finish the part of a pipeline with the fraction `budget` of its
        time.
        """
        if request.deadline_ns == NEVER_NS:
            return NEVER_NS
        left_ns = request.deadline_ns - self._reserve_ns - request.arrival_ns
        return request.arrival_ns + (left_ns if budget == 1 else round(left_ns * budget))

    def work_ns(self, found: SizedBatch) -> Sequence[int]:
        """Return the latency in ns of a batch's route without waiting, by rows - 1."""
        return found.route.work_ns(found.shape, self._resources)

    def _by_waiting(self, now_ns: int, routes: list[SizedPipeline], shape: str) -> list[SizedPipeline]:
        """Step 1: the pipeline first whose links and workers keep a batch of its planned size waiting least."""
        waiting = [
            (self._probe(now_ns, route, route.merged_rows, shape).waiting_ns, number)
            for number, route in enumerate(routes)
        ]
        return [routes[number] for _, number in sorted(waiting)]

    def _largest(self, now_ns: int, queue: RequestQueue, route: SizedPipeline) -> SizedBatch | None:
        """Step 2: the most rows that meet the earliest deadline among them. None: not even the head's."""
        # A batch that no request may join has its final size.
        work_ns, size = route.work_ns(queue.shape, self._resources), max(route.merged_rows, queue.head.rows)
        while size >= queue.head.rows:
            count, rows, due_ns = self._prefix(queue, route, size)
            if due_ns != NEVER_NS and work_ns[size - 1] > due_ns - now_ns:
                size = bisect_right(work_ns, due_ns - now_ns)
                continue
            may_grow = count == len(queue) and due_ns != NEVER_NS and queue.head.deferrable
            wanted = size if may_grow else rows
            path = self._probe(now_ns, route, wanted, queue.shape)
            late_ns = path.promised_ns + self._kept_ns(now_ns, queue.head, route, path) - due_ns
            if late_ns <= 0:
                if wanted > rows:
                    path = self._probe(now_ns, route, rows, queue.shape)
                return SizedBatch(route, queue.shape, size, count, rows, due_ns, path)
            size = bisect_right(work_ns, work_ns[wanted - 1] - late_ns)
        return None

    def _kept_ns(self, now_ns: int, head: Request, route: SizedPipeline, path: BatchRoute) -> int:
        """The time that has to be left beyond what is promised: workers serve what is on time for certain before that.

        At most half of what the head has to spare where nothing waits: one that finds its path idle is never refused.
        """
        time_ns = self.due_ns(head, route.budget) - head.arrival_ns
        alone_ns = path.promised_ns - now_ns - path.waiting_ns
        return min(round((SURE_DEVIATIONS - ON_TIME_DEVIATIONS) * path.margin_ns), max(0, time_ns - alone_ns) // 2)

    def _probe(self, now_ns: int, route: SizedPipeline, rows: int, shape: str) -> BatchRoute:
        path = self._resources.probe(route.planned, rows, shape, now_ns)
        assert path is not None, "each of its partitions is hosted"
        return path

    def _prefix(self, queue: RequestQueue, route: SizedPipeline, most_rows: int) -> tuple[int, int, int]:
        """Return the oldest requests of at most this many rows: their number, rows and earliest deadline."""
        count = rows = 0
        due_ns = NEVER_NS
        for request in queue:
            if rows + request.rows > most_rows:
                break
            count += 1
            rows += request.rows
            due_ns = min(due_ns, self.due_ns(request, route.budget))
        return count, rows, due_ns
