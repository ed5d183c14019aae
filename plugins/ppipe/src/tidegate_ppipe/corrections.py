"""Corrects batches in flight that are early, late or lost their worker."""

from collections.abc import Callable, Sequence

from tidegate.api import AnyCommand, BatchFailed, Reroute, StageFinished
from tidegate_ppipe.reservations import PooledWorker
from tidegate_ppipe.resources import Resources
from tidegate_ppipe.routes import InFlightBatch, RouteStop, stages_of


class Corrections:
    """Batches in flight, whose reservations are corrected by events."""

    def __init__(self, resources: Resources, serve: Callable[[int, int], list[AnyCommand]]) -> None:
        """Create the table without batches.

        `serve(now_ns, worker_id)` returns commands for a worker that became free.
        """
        self._resources = resources
        self._serve = serve
        self._flights: dict[int, InFlightBatch] = {}
        """The batches, by their ids."""

    def begin(self, flight: InFlightBatch) -> None:
        """Add a batch that is dispatched, and reserve its route."""
        self._flights[flight.batch_id] = flight
        self._resources.reserve(flight, flight.stops)

    def stage_finished(self, event: StageFinished) -> list[AnyCommand]:
        """Correct the reservations after a stage, and start the worker's next one."""
        flight = self._flights.get(event.batch_id)
        if flight is None:
            return []
        commands: list[AnyCommand] = []
        stop = flight.stops[event.stage]
        self._resources.release((stop,))
        flight.stage = event.stage + 1
        if flight.stage == len(flight.stops):
            del self._flights[event.batch_id]
        else:
            commands += self._correct(event.now_ns, flight, stop)
        return commands + self._advance(event.now_ns, stop.place)

    def failed(self, event: BatchFailed) -> list[AnyCommand]:
        """Free the reservations of a failed batch."""
        flight = self._flights.pop(event.batch_id, None)
        if flight is None:
            return []
        left = flight.stops[flight.stage :]
        self._resources.release(left)
        return [command for stop in left for command in self._freed(event.now_ns, stop.place)]

    def lost(self, now_ns: int, place: PooledWorker) -> list[AnyCommand]:
        """Reroute batches that need the lost worker `place`, or let them fail; return the commands."""
        commands: list[AnyCommand] = []
        for flight in list(self._flights.values()):
            if any(stop.place is place for stop in flight.stops[flight.stage :]):
                commands += self._lead_elsewhere(now_ns, flight, place)
        return commands

    def _correct(self, now_ns: int, flight: InFlightBatch, done: RouteStop) -> Sequence[AnyCommand]:
        """A stage is over: where that was not as planned, the rest of the path is chosen again, or is late."""
        if now_ns == done.end_ns:
            return []
        rest = flight.stops[flight.stage :]
        self._resources.release(rest)
        late = self._resources.follow(rest, now_ns, done)
        other = self._resources.probe([stop.partition for stop in rest], flight.rows, flight.shape, now_ns, done)
        if other is None or (late.end_ns <= other.end_ns and all(map(self._resources.is_here, rest))):
            flight.stops[flight.stage :] = late.stops
            self._resources.reserve(flight, late.stops, done)
            commands = self._advance(now_ns, rest[0].place)
            is_early = now_ns < min(done.booked_ns + done.duration_ns, rest[0].booked_ns)
            is_here = all(map(self._resources.is_here, rest))  # else it is going to fail
            if is_early and is_here and flight.batch_id not in [each.batch_id for each in commands]:
                commands.append(Reroute(flight.batch_id, stages_of(late.stops)))  # its rows are sent at once
            return commands
        return self._reroute(now_ns, flight, flight.stage, other.stops, done)

    def _lead_elsewhere(self, now_ns: int, flight: InFlightBatch, lost: PooledWorker) -> list[AnyCommand]:
        """A worker is lost where a batch was to go: another one takes its place, if there is one."""
        first = next(index for index in range(flight.stage, len(flight.stops)) if flight.stops[index].place is lost)
        if first == flight.stage and (first == 0 or flight.stops[first].booked_ns <= now_ns):
            return []  # it may be there already: then it fails
        sender = flight.stops[first - 1]
        rest = flight.stops[first:]
        self._resources.release(rest)
        ready_ns = now_ns if first == flight.stage else max(now_ns, sender.end_ns)
        partitions = [stop.partition for stop in rest]
        path = self._resources.probe(partitions, flight.rows, flight.shape, now_ns, sender, ready_ns)
        if path is None:
            return []
        return self._reroute(now_ns, flight, first, path.stops, sender)

    def _reroute(
        self, now_ns: int, flight: InFlightBatch, first: int, stops: list[RouteStop], sender: RouteStop
    ) -> list[AnyCommand]:
        left = [stop.place for stop in flight.stops[first:]]
        flight.stops[first:] = stops
        self._resources.reserve(flight, stops, sender)
        commands: list[AnyCommand] = [Reroute(flight.batch_id, stages_of(stops))]
        for place in left:
            commands += self._freed(now_ns, place)
        return commands

    def _freed(self, now_ns: int, place: PooledWorker) -> list[AnyCommand]:
        """A worker is no more needed where it was reserved."""
        return [*self._advance(now_ns, place), *self._serve(now_ns, place.id)]

    def _advance(self, now_ns: int, place: PooledWorker) -> list[Reroute]:
        """Start the next batch of a worker earlier if its input is there earlier."""
        commands: list[Reroute] = []
        if not place.timetable:
            return commands
        free_ns = place.free_ns(now_ns)
        for interval in list(place.timetable.intervals):
            stop = interval.holder
            assert isinstance(stop, RouteStop)
            start_ns = max(free_ns, stop.there_ns)
            if stop.booked_ns > now_ns and start_ns < stop.start_ns and stop.flight:
                rest = stop.flight.stops[stop.flight.stops.index(stop) :]
                if all(map(self._resources.is_here, rest)):  # else it is going to fail
                    was_booked_ns = stop.booked_ns
                    self._resources.advance(stop, start_ns)
                    if stop.booked_ns < was_booked_ns:  # else it is late still, and keeps its booking
                        commands.append(Reroute(stop.flight.batch_id, stages_of(rest)))
            free_ns = max(free_ns, stop.end_ns)
        return commands
