"""The engine's books: what is queued, in flight and booked, and how every request ended."""

from collections import Counter
from dataclasses import dataclass, field

from tidegate.api import Batch, BatchFailed, Leg, Request, Worker


@dataclass(slots=True)
class Flight:
    """A dispatched batch on its way along its legs."""

    batch: Batch
    requests: list[Request]
    rows: int
    leg: int = 0
    """The leg that runs, or waits for its worker."""
    running: bool = False
    doomed: BatchFailed | None = None
    """Told once the leg that runs is over: a worker further on was lost."""
    preempted: bool = False
    """The policy took its worker away; its driver will tell when the worker is free."""


@dataclass(slots=True)
class Bookings:
    """What is booked on a worker, in the order of the planned starts."""

    worker: Worker
    hosts: frozenset[str]
    """Its partitions, to look up."""
    legs: list[Leg] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    """The flight of each leg."""

    def book(self, leg: Leg, flight: Flight) -> None:
        """Enter a leg where its planned start puts it."""
        position = len(self.legs)
        while position and self.legs[position - 1].start_ns > leg.start_ns:
            position -= 1
        self.legs.insert(position, leg)
        self.flights.insert(position, flight)

    def clear(self, flight: Flight) -> None:
        """Strike every leg of a flight."""
        kept = [(leg, other) for leg, other in zip(self.legs, self.flights, strict=True) if other is not flight]
        self.legs = [leg for leg, _ in kept]
        self.flights = [other for _, other in kept]


@dataclass
class Tally:
    """How requests ended: their sum is `accepted` once nothing is queued or in flight (invariant 1)."""

    accepted: int = 0
    answered: int = 0
    late: int = 0
    """Of the answered, those after their deadline."""
    failed: int = 0
    cancelled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason."""

    @property
    def ended(self) -> int:
        """Every request that has ended, however it did."""
        return self.answered + self.failed + self.cancelled + self.dropped.total()
