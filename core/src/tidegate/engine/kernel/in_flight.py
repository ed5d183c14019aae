"""Batches in flight: workers are reserved, and each stage starts when its time has come and its worker is free."""

from collections.abc import Callable

import msgspec

from tidegate.api import Batch, BatchFailed, Request, Reroute, Stage, StageFinished
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.kernel.early_dispatch import EarlyDispatch
from tidegate.engine.kernel.invariants import InvariantViolation, check_stages
from tidegate.engine.state_tables import InFlightBatch, Reservations, WorkerTable
from tidegate.engine.timers import Timers
from tidegate.observation import SentStage, StartStage


class InFlightBatches:
    """Batches that were dispatched and have not ended, with their reservations."""

    def __init__(
        self,
        fleet: WorkerTable,
        expectations: Expectations,
        overlap: EarlyDispatch,
        started: Callable[[StartStage, str], None],
    ) -> None:
        """Create the table without batches.

        `overlap`: early dispatch, which learns from running stages. `started(stage, device class)` is called for every
        stage that is sent.
        """
        self._fleet = fleet
        self._expectations = expectations
        self._overlap = overlap
        self._started = started
        self._by_batch: dict[int, InFlightBatch] = {}
        self._of_request: dict[int, InFlightBatch] = {}
        """While its client waits for it."""
        self._planned_starts = Timers()

    def __len__(self) -> int:
        return len(self._by_batch)

    @property
    def next_start_ns(self) -> int:
        """Time, in ns, of the next planned start on an idle worker; NEVER_NS if there is none."""
        return self._planned_starts.next_ns

    def get(self, batch_id: int) -> InFlightBatch | None:
        """Return the batch in flight with this id; None if there is none."""
        return self._by_batch.get(batch_id)

    def start_batch(self, now_ns: int, batch: Batch, requests: list[Request], rows: int) -> None:
        """Add a dispatched batch of `rows` rows at `now_ns` and reserve its workers."""
        flight = self._by_batch[batch.id] = InFlightBatch(batch, requests, rows, requests[0].shape)
        if self._streams(batch):
            flight.occupant = requests[0]
        for request in requests:
            self._of_request[request.id] = flight
        for stage in batch.stages:
            self._fleet.bookings[stage.worker_id].book(stage, flight)
        self._start_or_wait(now_ns, flight)

    def resume(self, now_ns: int, sent: SentStage, requests: list[Request]) -> None:
        """Add a batch whose stage ran before the engine's state was rebuilt, in the order of stages on each worker.

        `requests`: those that still wait for it.
        """
        effect = sent.effect
        batch, bookings = effect.batch, self._fleet.bookings
        flight = self._by_batch[batch.id] = InFlightBatch(batch, requests, effect.rows, effect.shape, effect.stage)
        flight.running, flight.sent_ns = True, sent.sent_ns
        flight.first_response_ns = sent.first_response_ns
        if requests and self._streams(batch):
            flight.occupant = requests[0]
        for request in requests:
            self._of_request[request.id] = flight
        booked = bookings[sent.worker_id]
        flight.early_ns = None if booked.stages else 0
        for stage in batch.stages[effect.stage :]:
            if stage.worker_id in bookings:
                bookings[stage.worker_id].book(stage, flight)
            else:
                reason = f"worker {stage.worker_id} was lost"
                flight.doomed = BatchFailed(now_ns, batch.id, effect.stage, stage.worker_id, reason, retry=True)
        self._expectations.stage_started(sent.sent_ns, batch, effect.stage, booked.worker.device_class, effect.shape)
        if flight.early_ns is not None:
            first = batch.stages[effect.stage]
            self._begin_overlap(sent.sent_ns, first, booked, flight)

    def reroute(self, now_ns: int, command: Reroute) -> None:
        """Replace the last stages of a batch. Raises InvariantViolation if they contradict the batch or the workers."""
        flight = self._by_batch.get(command.batch_id)
        if flight is None or flight.preempted:
            raise InvariantViolation(3, f"batch {command.batch_id} is rerouted but is not on its way")
        stages = flight.batch.stages
        first = len(stages) - len(command.stages)
        before = stages[first:]
        if first < flight.stage + flight.running:
            raise InvariantViolation(3, f"batch {command.batch_id} is rerouted from stage {first} on, which has begun")
        if [stage.partition for stage in command.stages] != [stage.partition for stage in before]:
            partitions = [stage.partition for stage in before]
            raise InvariantViolation(3, f"batch {command.batch_id} is rerouted: it has to go through {partitions}")
        batch = msgspec.structs.replace(flight.batch, stages=stages[:first] + command.stages)
        earliest_ns = max(now_ns, stages[first - 1].end_ns) if first > flight.stage else now_ns
        bookings = self._fleet.bookings
        struck = [stage for stage in before if stage.worker_id in bookings and bookings[stage.worker_id].strike(stage)]
        try:
            check_stages(earliest_ns, batch, bookings, first=first)
        except InvariantViolation:
            for stage in struck:
                bookings[stage.worker_id].book(stage, flight)
            raise
        flight.batch = batch
        for stage in command.stages:
            bookings[stage.worker_id].book(stage, flight)
        if all(
            stage.worker_id in bookings and stage in bookings[stage.worker_id].stages
            for stage in batch.stages[flight.stage :]
        ):
            flight.doomed = None  # else a stage before these lacks its worker
        self._planned_starts.cancel(batch.id)
        self._start_or_wait(now_ns, flight)
        self.start_next(now_ns, *(stage.worker_id for stage in before))

    def leave(self, request_id: int) -> bool:
        """Remove a request whose client left; its rows still run. Return False if it was not in flight."""
        flight = self._of_request.pop(request_id, None)
        if flight is None:
            return False
        flight.requests = [request for request in flight.requests if request.id != request_id]
        return True

    def stage_over(self, event: StageFinished) -> InFlightBatch | None:
        """Free the worker of a stage that ended and return its batch, which `go_on` continues.

        Returns None for a stage of an aborted batch.
        """
        flight = self._by_batch.get(event.batch_id)
        if flight is None or not flight.running or flight.stage != event.stage:
            return None
        stage = flight.batch.stages[event.stage]
        self._strike(event.now_ns, self._fleet.bookings[stage.worker_id], flight, lambda booked: booked.strike(stage))
        flight.running = False
        flight.stage += 1
        if flight.stage == len(flight.batch.stages):
            self._end(flight)
        return flight

    def go_on(self, now_ns: int, flight: InFlightBatch) -> None:
        """Start the next stage of a batch, if it has not ended."""
        if flight.batch.id in self._by_batch:
            self._start_or_wait(now_ns, flight)

    def abort(self, now_ns: int, flight: InFlightBatch) -> None:
        """Remove a batch that will not be answered, with its reservations."""
        self._end(flight)
        self._planned_starts.cancel(flight.batch.id)
        for stage in flight.batch.stages:
            if booked := self._fleet.bookings.get(stage.worker_id):
                self._strike(now_ns, booked, flight, lambda booked: booked.clear(flight))

    def cut_off(self, now_ns: int, flight: InFlightBatch, lost_id: int) -> None:
        """Remove the reservations of a batch from the lost worker `lost_id` on; the batch fails there."""
        stages = flight.batch.stages
        first = next((at for at in range(flight.stage, len(stages)) if stages[at].worker_id == lost_id), len(stages))
        freed = [stage for stage in stages[first:] if stage.worker_id in self._fleet.bookings]
        for stage in freed:
            self._fleet.bookings[stage.worker_id].strike(stage)
        self.start_next(now_ns, *(stage.worker_id for stage in freed))

    def doom(self, now_ns: int, lost: Reservations) -> list[InFlightBatch]:
        """Mark the batches with reservations on a lost worker, and return them: no stage starts unless they are
        rerouted.
        """
        doomed = list({id(flight): flight for flight in lost.flights}.values())
        reason = f"worker {lost.worker.name} was lost"
        for flight in doomed:
            flight.doomed = BatchFailed(now_ns, flight.batch.id, flight.stage, lost.worker.id, reason, retry=True)
        return doomed

    def is_due(self, now_ns: int) -> bool:
        """Whether `start_due` may have a stage to start."""
        starts = self._planned_starts
        return starts.earliest_ns <= now_ns and starts.next_ns <= now_ns

    def start_due(self, now_ns: int) -> None:
        """Start the stages that are due."""
        if self._planned_starts.earliest_ns <= now_ns:
            for _, batch_id in self._planned_starts.pop_due(now_ns):
                if isinstance(batch_id, int) and batch_id in self._by_batch:
                    self._start_or_wait(now_ns, self._by_batch[batch_id])

    def start_next(self, now_ns: int, *worker_ids: int) -> None:
        """Start the next stages on workers that became free."""
        for worker_id in worker_ids:
            booked = self._fleet.bookings.get(worker_id)
            if booked and booked.flights:
                flight = booked.flights[0]
                if flight.batch.stages[flight.stage] is booked.stages[0]:
                    self._start_or_wait(now_ns, flight)

    def _start_or_wait(self, now_ns: int, flight: InFlightBatch) -> None:
        """Start a flight's next stage if its time has come, its worker is free and nothing is booked before it.

        Or send it so that it is there when its worker is about to be free.
        """
        stage = flight.batch.stages[flight.stage]
        booked = self._fleet.bookings.get(stage.worker_id)
        if flight.running or flight.doomed or booked is None or booked.is_lost or not booked.stages:
            return  # what is doomed begins nothing more, whoever frees its next worker before it has failed
        is_first = booked.stages[0] is stage
        if not is_first and not booked.may_follow(now_ns, stage):
            return
        if is_first and stage.start_ns > now_ns:
            self._planned_starts.set(flight.batch.id, stage.start_ns)
            return
        flight.running, flight.sent_ns, flight.early_ns = True, now_ns, 0 if is_first else None
        if is_first:
            self._begin_overlap(now_ns, stage, booked, flight)
        self._started(StartStage(flight.batch, flight.stage, flight.rows, flight.shape), booked.worker.device_class)

    def _strike(
        self, now_ns: int, booked: Reservations, flight: InFlightBatch, strike: Callable[[Reservations], object]
    ) -> None:
        """Stages of a flight are booked no more; what was on its way behind the one that ran runs now."""
        ran = booked.flights[0] if booked.flights else None
        strike(booked)
        if ran is not flight:
            return
        booked.free_ns = None
        self._overlap.ends(booked.worker.id)
        if booked.flights and (following := booked.flights[0]).runs(booked.stages[0]):
            following.early_ns = now_ns - following.sent_ns
            self._begin_overlap(now_ns, booked.stages[0], booked, following)

    def _begin_overlap(self, now_ns: int, stage: Stage, booked: Reservations, flight: InFlightBatch) -> None:
        """A stage runs: expect its end, unless its profile ends with the first of many responses."""
        if not self._streams(flight.batch):
            profile = self._expectations.profiles[stage.partition, booked.worker.device_class, flight.shape]
            self._overlap.begins(now_ns, booked.worker, flight, profile)

    def _streams(self, batch: Batch) -> bool:
        model = self._fleet.models.get(batch.model)
        return model is not None and model.streams

    def _end(self, flight: InFlightBatch) -> None:
        del self._by_batch[flight.batch.id]
        for request in flight.requests:
            del self._of_request[request.id]
