"""Waiting requests of one queue in arrays, so that computations on thousands of them take microseconds."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from tidegate.api import NEVER_NS, NS_PER_MS, Model, QueueKey, Request
from tidegate.toolkit import RequestQueue
from tidegate_orloj.applications import Applications, BatchKind
from tidegate_orloj.batch_latency import Floats
from tidegate_orloj.priority import Cost, PriorityCurve

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
FIRST_CAPACITY = 16
MAX_EXPONENT = 100.0
"""Value of `b * (t - base)` (b: `delay_rate`) at which the base of times is reset: exp() overflows at 709."""


@dataclass(slots=True)
class _Lines:
    """Priority curves of all requests in batches of one size: `alpha * exp(b*t) + beta` until the milestone.

    The first index of alpha and beta is the slowest group in the batch.
    """

    curve: PriorityCurve
    alpha: Floats
    beta: Floats
    milestone_ms: Floats


class PendingQueue(RequestQueue):
    """Queue of n requests at places 0 to n-1 of arrays; the last request fills the place of one that leaves."""

    __slots__ = (
        "_app",
        "_arrival_ns",
        "_base_ns",
        "_due_ns",
        "_ids",
        "_lines",
        "_patience_ns",
        "_place",
        "_rows",
        "_steps",
        "_steps_ns",
        "applications",
        "wake_ns",
    )

    def __init__(
        self,
        key: QueueKey,
        model: Model,
        applications: Applications,
        steps: tuple[Cost, ...],
        *,
        no_slo_max_deferral_ns: int,
    ) -> None:
        """Create an empty queue.

        `steps`: cost function as (multiple of the time from arrival to deadline, additional cost), ascending.
        `no_slo_max_deferral_ns`: how long, in ns, requests without a deadline yield to others.
        """
        super().__init__(key, model)
        self.applications = applications
        self.wake_ns = NEVER_NS
        """When the next of its requests cannot be on time any more, as far as a timer is set."""
        self._steps = steps
        self._patience_ns = no_slo_max_deferral_ns
        self._place: dict[int, int] = {}
        self._ids: Ints = np.zeros(FIRST_CAPACITY, np.int64)
        self._arrival_ns: Ints = np.zeros(FIRST_CAPACITY, np.int64)
        self._due_ns: Ints = np.zeros(FIRST_CAPACITY, np.int64)
        self._steps_ns: Ints = np.zeros((len(steps), FIRST_CAPACITY), np.int64)
        self._app: NDArray[np.intp] = np.zeros(FIRST_CAPACITY, np.intp)
        self._rows: Ints = np.zeros(FIRST_CAPACITY, np.int64)
        self._lines: dict[BatchKind, _Lines] = {}
        self._base_ns = 0

    @property
    def app(self) -> NDArray[np.intp]:
        """Application number of each request."""
        return self._app[: len(self)]

    @property
    def urgency(self) -> tuple[int, int]:
        """Key by which queues are ranked, smallest first, if there are too many to examine each: O(1).

        The key is the time in ns at which its first request is lost, or at which the oldest request without a deadline
        stops yielding; then its arrival.
        """
        arrival_ns = self.head.arrival_ns
        return min(self.wake_ns, arrival_ns + self._patience_ns), arrival_ns

    @property
    def due_ns(self) -> Ints:
        """Last useful response time of each request, in ns; NEVER_NS: always useful."""
        return self._due_ns[: len(self)]

    @property
    def rows_each(self) -> Ints:
        """Rows of each request."""
        return self._rows[: len(self)]

    def request_at(self, place: int) -> Request:
        """Return the request at a place of the arrays."""
        return self._requests[int(self._ids[place])]

    def push(self, request: Request) -> None:
        """Add a request: O(1)."""
        super().push(request)
        place = self._place[request.id] = len(self._place)
        if place == len(self._ids):
            self._grow()
        self._ids[place] = request.id
        self._arrival_ns[place] = request.arrival_ns
        self._app[place] = self.applications.number_of(request)
        self._rows[place] = request.rows
        if request.deadline_ns == NEVER_NS:
            self._steps_ns[:, place] = request.arrival_ns + self._patience_ns
            self._due_ns[place] = NEVER_NS
        else:
            given_ns = request.deadline_ns - request.arrival_ns
            for step, (multiple, _) in enumerate(self._steps):
                self._steps_ns[step, place] = min(NEVER_NS, request.arrival_ns + round(multiple * given_ns))
            self._due_ns[place] = self._steps_ns[-1, place]
        for lines in self._lines.values():
            lines.milestone_ms[place] = -np.inf

    def remove(self, request_id: int) -> None:
        """Remove a request at any position: O(1)."""
        super().remove(request_id)
        place = self._place.pop(request_id, None)
        last = len(self._place)
        if place is None or place == last:
            return
        self._place[int(self._ids[last])] = place
        for array in self._arrays():
            array[..., place] = array[..., last]

    def pop(self, count: int, start: int = 0) -> list[Request]:
        """Remove and return `count` requests, oldest first, after the oldest `start`."""
        taken = list(self)[start : start + count]
        for request in taken:
            self.remove(request.id)
        return taken

    def alone_ns(self, device_class: str) -> Ints:
        """Return the expected stand-alone latency in ns of each request on a device class `device_class`."""
        groups = self.groups(device_class)
        if self.rows == len(self):
            return self.applications.alone_ns(device_class, 1)[groups]
        alone_ns = np.zeros(len(self), np.int64)
        for rows in np.unique(self.rows_each).tolist():
            places = self.rows_each == rows
            alone_ns[places] = self.applications.alone_ns(device_class, rows)[groups[places]]
        return alone_ns

    def groups(self, device_class: str) -> NDArray[np.intp]:
        """Return the group of each request on a device class `device_class`, by its application."""
        return self.applications.groups(device_class).group_of[self.app]

    def scores(self, size: BatchKind, curve: PriorityCurve, now_ns: int) -> Floats:
        """Return the priority of each request in batches of this size (Equation 2) at `now_ns`.

        `curve`: priority curve of such batches. Row i holds for batches whose slowest group is at most the i-th.
        Requests that no longer yield have infinite priority.
        """
        count = len(self)
        if curve.delay_rate * (now_ns - self._base_ns) / NS_PER_MS > MAX_EXPONENT:
            self._base_ns = now_ns
            self._lines.clear()
        lines = self._lines.get(size)
        if lines is None or len(lines.alpha) != curve.batches:
            drawn, capacity = np.zeros((curve.batches, len(self._ids))), len(self._ids)
            lines = self._lines[size] = _Lines(curve, drawn, drawn.copy(), np.full(capacity, -np.inf))
        elif lines.curve is not curve:
            lines.curve = curve
            lines.milestone_ms.fill(-np.inf)
        now_ms = (now_ns - self._base_ns) / NS_PER_MS
        past = np.flatnonzero(lines.milestone_ms[:count] <= now_ms)
        if len(past):
            self._update(lines, size.device_class, past, now_ms)
        scores: Floats = lines.alpha[:, :count] * exp(curve.delay_rate * now_ms) + lines.beta[:, :count]
        if self._due_ns[:count].max() == NEVER_NS:
            patient = (self._due_ns[:count] == NEVER_NS) & (self._steps_ns[-1, :count] <= now_ns)
            scores[:, patient] = np.inf
        return scores

    def best(self, scores: Floats, among: Mask, most_rows: int) -> NDArray[np.intp]:
        """Return the places of the highest scores that fit into `most_rows` rows, older requests first if equal.

        `among`: mask of the requests to choose from.
        """
        places = np.flatnonzero(among)
        if len(places) > most_rows:  # each has a row at least
            least = np.partition(scores[places], len(places) - most_rows)[len(places) - most_rows]
            places = places[scores[places] >= least]
        ranked: NDArray[np.intp] = places[np.lexsort((self._ids[places], self._arrival_ns[places], -scores[places]))]
        rows = self._rows[ranked]
        if rows.sum() <= most_rows:
            return ranked
        taken, left = [0], most_rows - int(rows[0])  # a single request may be larger
        for place, each in enumerate(rows[1:].tolist(), 1):
            if each <= left:  # what does not fit leaves room for smaller ones behind it
                taken.append(place)
                left -= each
        return ranked[taken]

    def _update(self, lines: _Lines, device_class: str, places: NDArray[np.intp], now_ms: float) -> None:
        steps = []
        before = 0.0
        for step, (_, cost) in enumerate(self._steps):
            steps.append(((self._steps_ns[step, places] - self._base_ns) / NS_PER_MS, cost - before))
            before = cost
        drawn = lines.curve.lines_of_steps(self.groups(device_class)[places], steps, now_ms)
        lines.alpha[:, places], lines.beta[:, places], lines.milestone_ms[places] = drawn

    def _arrays(self) -> Iterator[NDArray[np.int64] | NDArray[np.float64]]:
        """All arrays by place, which is their last index."""
        yield from (self._ids, self._arrival_ns, self._due_ns, self._steps_ns, self._app, self._rows)
        for lines in self._lines.values():
            yield from (lines.alpha, lines.beta, lines.milestone_ms)

    def _grow(self) -> None:
        """Double the places, and draw the lines again."""
        self._lines.clear()
        self._ids, self._arrival_ns, self._due_ns, self._app, self._rows = (
            np.concatenate((array, np.zeros_like(array)))
            for array in (self._ids, self._arrival_ns, self._due_ns, self._app, self._rows)
        )
        self._steps_ns = np.concatenate((self._steps_ns, np.zeros_like(self._steps_ns)), axis=1)
