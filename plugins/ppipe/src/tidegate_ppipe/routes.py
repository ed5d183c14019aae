"""Routes of batches: one worker of each pool, and the time of arrival there."""

from collections.abc import Iterable
from math import hypot

from tidegate.api import Stage
from tidegate.api.profile import MAX_SURPRISE_FACTOR
from tidegate_ppipe.reservations import PooledWorker, Reservation, Timetable

ON_TIME_DEVIATIONS = 0.5
"""Spare time, in standard deviations of its route, with which a batch is expected to be on time.

A dropped request would certainly be late, and a dispatched one is late in one of three cases at worst.
"""

BUFFER_DEVIATIONS = 2
"""Lead in standard deviations of its route with which a batch starts before later pools are expected to be free."""


class RouteStop:
    """Stop of a route: a partition on a worker, its input transfer, and their reservations."""

    __slots__ = (
        "booked_ns",
        "duration_ns",
        "flight",
        "margin_ns",
        "partition",
        "place",
        "reserved",
        "sent_ns",
        "start_ns",
        "there_ns",
        "transfer_ns",
        "transfers",
    )

    def __init__(
        self,
        partition: str,
        place: PooledWorker,
        sent_ns: int,
        transfer_ns: int,
        there_ns: int,
        start_ns: int,
        duration_ns: int,
        margin_ns: int,
    ) -> None:
        self.partition = partition
        self.place = place
        self.sent_ns = sent_ns
        """When the transfer begins, if there is one."""
        self.transfer_ns = transfer_ns
        """How long it occupies the links; 0: none of them."""
        self.there_ns = there_ns
        """When the input is there."""
        self.start_ns = start_ns
        self.booked_ns = start_ns
        """The start that the engine knows: what is late has its place in the order from it."""
        self.duration_ns = duration_ns
        self.margin_ns = margin_ns
        """How much of that is margin, a standard deviation: it is that much longer than is expected."""
        self.flight: InFlightBatch | None = None
        """The batch that comes here; None: it has been looked at only."""
        self.reserved: Reservation | None = None
        """The reservation of the worker."""
        self.transfers: list[tuple[Timetable, Reservation]] = []
        """The reservations of the links."""

    @property
    def end_ns(self) -> int:
        """End of the stage on the worker, in ns."""
        return self.start_ns + self.duration_ns


class BatchRoute:
    """Route of a batch: one worker of each pool of a pipeline, in order."""

    __slots__ = ("end_ns", "margin_ns", "promised_ns", "start_ns", "stops", "waiting_ns")

    def __init__(self, stops: list[RouteStop], waiting_ns: int) -> None:
        self.stops = stops
        self.waiting_ns = waiting_ns
        """How long a batch waits for links and workers, along the whole path."""
        self.start_ns = stops[0].start_ns
        self.end_ns = stops[-1].end_ns
        """When it is over where every stage needs its whole margin."""
        margins_ns = [stop.margin_ns for stop in stops]
        self.margin_ns = round(margin_ns(margins_ns))
        """The margin of the whole path: its standard deviation, as far as it was measured."""
        expected_ns = self.end_ns - sum(margins_ns)
        last = stops[-1]
        least_ns = max(1, (last.duration_ns - last.margin_ns) // MAX_SURPRISE_FACTOR)
        self.promised_ns = max(expected_ns + round(ON_TIME_DEVIATIONS * self.margin_ns), last.start_ns + least_ns)
        """When it has to be over for the batch to leave; never before the least that its last stage may take."""

    @property
    def early_ns(self) -> int:
        """Time in ns by which a batch may start later and still wait at a later pool or its links.

        It is reduced by a safety time if stages scatter: the batches ahead may end early.
        """
        early_ns = 0
        runs_ns = self.start_ns
        for stop in self.stops:
            early_ns = max(early_ns, stop.start_ns - runs_ns - stop.duration_ns - stop.transfer_ns)
            runs_ns += stop.duration_ns + stop.transfer_ns
        return early_ns - BUFFER_DEVIATIONS * self.margin_ns


def margin_ns(margins_ns: Iterable[int]) -> float:
    """Return the standard deviation of a route in ns, from those of independent stages."""
    return hypot(*margins_ns)


class InFlightBatch:
    """A batch in flight, with its route."""

    __slots__ = ("batch_id", "rows", "shape", "stage", "stops")

    def __init__(self, batch_id: int, rows: int, shape: str, stops: list[RouteStop]) -> None:
        self.batch_id = batch_id
        self.rows = rows
        self.shape = shape
        self.stops = stops
        self.stage = 0
        """The stop where it is, or goes next."""


def stages_of(stops: Iterable[RouteStop]) -> tuple[Stage, ...]:
    """Return the stages of these stops for the engine."""
    return tuple(
        Stage(stop.place.id, stop.partition, stop.booked_ns, stop.duration_ns, stop.sent_ns if stop.transfer_ns else 0)
        for stop in stops
    )
