"""Priority classes of requests that wait for the same workers: a more urgent class goes first, before the policy.

Each class has its own fair queueing (`FairQueueGroup`). While several classes wait, the policy sees one of them:

- All workers are busy: the most urgent class, or one that its floor owes a batch.
- A worker is idle: the most urgent class, and less urgent ones that do not delay it. More workers are idle than kinds
  of more urgent batches wait, or a batch ends before the more urgent requests have to start.

A class with a floor keeps that fraction of the worker time while it waits. It saves up one batch at most.
"""

from collections.abc import Callable, Mapping

from tidegate.api.model import DEFAULT_PRIORITY
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.waiting.fair_queue_group import REMEMBERED_NS, FairQueueGroup

LOWEST_CLASS_FLOOR = 0.05
"""Fraction of worker time that the least urgent waiting class keeps where no floor is configured for it."""
MAX_IDLE_CLASSES = 16
"""Number of classes without requests that are remembered, because clients may choose priorities."""


class _Credit:
    """Worker time that a class is owed by its floor, in ns."""

    __slots__ = ("owed_ns", "seen_ns")

    def __init__(self) -> None:
        self.owed_ns = 0.0
        self.seen_ns = -REMEMBERED_NS
        """When it last waited while others did."""


class PriorityClasses:
    """Priority classes of one set of workers."""

    def __init__(
        self,
        make: Callable[[], FairQueueGroup],
        fleet: WorkerTable,
        workers: frozenset[int],
        floors: Mapping[int, float],
    ) -> None:
        """Create the classes without requests.

        `make()` creates the group of a class. `workers`: ids of the workers. `floors`: fraction of worker time that a
        class keeps, by priority.
        """
        self._make = make
        self._fleet = fleet
        self._workers = workers
        self._floors = floors
        self._credits: dict[int, _Credit] = {}
        self.groups: dict[int, FairQueueGroup] = {}
        """The groups by priority."""
        self.has_several = False
        """Whether requests of another priority than the usual one have come."""
        self.usual = self.group(DEFAULT_PRIORITY)
        """The group of requests that name no priority."""

    def group(self, priority: int) -> FairQueueGroup:
        """Return the group of a priority, which may be a new one."""
        group = self.groups.get(priority)
        if group is None:
            if len(self.groups) > MAX_IDLE_CLASSES:
                self._prune()
            group = self.groups[priority] = self._make()
            self.has_several = len(self.groups) > 1
        return group

    def _prune(self) -> None:
        used = {
            priority: group
            for priority, group in self.groups.items()
            if priority == DEFAULT_PRIORITY or group.waiting or group.contended
        }
        self.groups = used
        self._credits = {priority: credit for priority, credit in self._credits.items() if priority in used}

    def meet(self, group: FairQueueGroup) -> list[FairQueueGroup]:
        """Return the groups of other priorities whose requests wait: they and this one are rivals from now on."""
        rivals = [other for other in self.groups.values() if other.waiting and other is not group]
        group.has_rivals = bool(rivals)
        group.closed = group.closed and group.has_rivals
        for rival in rivals:
            rival.has_rivals = True
        return rivals

    def arrange(self, now_ns: int) -> None:
        """Decide which classes the policy sees."""
        waiting = [(priority, group) for priority, group in sorted(self.groups.items()) if group.waiting]
        if len(waiting) < 2:
            for group in self.groups.values():
                group.closed = group.has_rivals = False
            return
        owed = self._owed(now_ns, waiting)
        idle = self._fleet.idle_ids & self._workers
        for place, (_, group) in enumerate(waiting):
            group.has_rivals = True
            group.above = [other for _, other in waiting[:place]]
            if not idle:
                group.closed = group is not (owed or waiting[0][1])
            elif place:
                group.closed = group is not owed and not self._is_left_over(now_ns, len(idle), group)
            else:
                group.closed = False

    def _owed(self, now_ns: int, waiting: list[tuple[int, FairQueueGroup]]) -> FairQueueGroup | None:
        """The class below the most urgent one that its floor owes the most; None if none is owed a batch."""
        most: tuple[float, FairQueueGroup | None] = (0.0, None)
        for priority, group in waiting[1:]:
            credit = self._credits.get(priority)
            if credit is None:
                credit = self._credits[priority] = _Credit()
            if now_ns - credit.seen_ns >= REMEMBERED_NS:
                credit.owed_ns = 0.0
            credit.seen_ns = now_ns
            if credit.owed_ns >= max(group.largest_ns, 1):
                most = max(most, (credit.owed_ns / max(group.largest_ns, 1), group), key=lambda each: each[0])
        return most[1]

    @staticmethod
    def _is_left_over(now_ns: int, idle: int, group: FairQueueGroup) -> bool:
        """Whether a class may have an idle worker without a delay for those above it."""
        if idle > sum(sum(other.kinds.values()) for other in group.above):
            return True
        return now_ns + group.largest_ns <= min(other.latest_start_ns for other in group.above)

    def charge(self, priority: int, duration_ns: int) -> None:
        """Record worker time in ns that a class has got."""
        lowest = max((number for number, group in self.groups.items() if group.waiting), default=priority)
        for number, credit in self._credits.items():
            group = self.groups[number]
            floor = self._floors.get(number, LOWEST_CLASS_FLOOR if number == lowest else 0.0)
            if group.waiting or number == priority:
                gained_ns = credit.owed_ns + floor * duration_ns - duration_ns * (number == priority)
                credit.owed_ns = min(max(gained_ns, -group.largest_ns), 2.0 * group.largest_ns)
