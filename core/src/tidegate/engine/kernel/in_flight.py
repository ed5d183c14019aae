"""Batches in flight: workers are reserved, and each stage starts when its time has come and its worker is free.

Early dispatch: a busy worker gets its next batch a `lead` before its running stage ends.

Without it a worker idles for the network latency between two stages: the response, the decision and the next call. A
batch that is sent earlier by that time arrives when the stage before it ends. The network latency of each worker is
learned from durations of stages:

- A stage sent to an idle worker takes the network latency and its execution. A stage sent `early`, while another
  runs, ends one execution after that one, if it arrived by then; otherwise the worker idled for the difference.
- So early dispatch gains `min(early, network latency)`. While the whole of `early` is gained, the lead grows. When less
  is gained, that is the network latency, and the lead settles at nearly twice as long: a batch that arrives too early
  waits a little, one that arrives too late leaves the worker idle, and the latency varies.
- If durations scatter so much that they show no gain, the lead is unchanged.

The running stage is expected to end at the first quartile of recent durations. Its later end is accounted for in the
planned start of the next stage (`free_ns`), which counts from the planned end, less the part of the margin that both
stages share. If the first quartile is much earlier than the median (`MAX_SPREAD_LEADS`), nothing is sent early: a batch
that waits at the worker longer than the worker would idle cannot be joined by later requests, and another worker may be
idle sooner.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import msgspec

from tidegate.api import Batch, BatchFailed, Profile, Request, Reroute, Stage, StageFinished, Worker
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.kernel.invariants import InvariantViolation, check_stages
from tidegate.engine.state_tables import InFlightBatch, Reservations, WorkerTable
from tidegate.engine.timers import Timers
from tidegate.observation import SentStage, StartStage

FIRST_LEAD_NS = 250_000
"""Initial lead of live engines in ns: less than any network round trip."""
MAX_LEAD_NS = 5_000_000
"""Maximum lead in ns before the usual end of the running stage; the batch may block the worker for that long.

The lead is at most the fraction `MAX_LEAD_FRACTION` of that stage, too.
"""
MAX_LEAD_FRACTION = 0.75
MIN_STAGE_NS = 1_500_000
"""Minimum duration in ns of a stage behind which a batch is sent: early batches are smaller and cost Tidegate as
much.
"""
MIN_IDLE_STAGES = 3
"""Number of stages sent to an idle worker after which their duration is known."""
WINDOW_STAGES = 8
"""Number of latest stages, on idle workers and behind other stages, from which durations are computed."""
STAGES_A_LOOK = 16
"""Number of stages behind others after which the lead is adjusted."""
BEHIND_IN_A_ROW, COST = 64, 0.002
"""Number of stages behind others after which one is sent to an idle worker, to measure the gain of early dispatch.

It happens later if it would cost more than this fraction of the worker's time.
"""
GAINED_FRACTION = 0.9
"""Gained fraction of `early` from which on the lead grows."""
GROWTH, SETTLED = 1.5, 1.8
"""Growth factor of the lead, and its final length as a multiple of the network latency."""
MAX_SPREAD_LEADS = 1.5
"""Maximum distance between first quartile and median of a stage's end, in leads, for early dispatch."""
UNSURE_AT_FIRST = 0.05
"""Initial lead limit as a fraction of the stage, if that is more: otherwise long network latency could not be
learned.
"""
MARGIN_FRACTION_OF_STAGE_AHEAD = sqrt(2) - 1
"""Fraction of a stage's margin that counts for the stage behind it, which has a margin of its own.

For independent durations of equal uncertainty, the margin of both is sqrt(2) times that of one.
"""


@dataclass(slots=True)
class _Excess:
    """How much longer stages take than their profile expects without its margin."""

    early_ns: int
    """A quarter of them end sooner."""
    middle_ns: int


class _Pace:
    """Latest durations of a partition's stages of one sort on a worker."""

    __slots__ = ("_excess", "_profile", "_stages")

    def __init__(self) -> None:
        self._stages: deque[tuple[int, int]] = deque(maxlen=WINDOW_STAGES)
        """Rows and duration."""
        self._profile: Profile | None = None
        self._excess: _Excess | None = None

    def add(self, rows: int, duration_ns: int) -> None:
        """A stage took so long."""
        self._stages.append((rows, duration_ns))
        self._profile = None

    def excess(self, profile: Profile) -> _Excess | None:
        """Return how much longer the stages took than the profile says; None before enough are known."""
        if self._profile is not profile:
            self._profile = profile
            count = len(self._stages)
            if count >= MIN_IDLE_STAGES:
                ranked = sorted(duration_ns - profile.expected_ns(rows) for rows, duration_ns in self._stages)
                self._excess = _Excess(ranked[count // 4], ranked[count // 2])
        return self._excess


@dataclass(slots=True)
class _Ways:
    """How far away a worker is, as far as is known."""

    lead_ns: int
    network_latency_ns: int = 0
    """Network latency in both directions; a lower bound if all of the lead was gained."""
    known: bool = False
    """Whether anything was learned of them."""
    grows: bool = True
    """Whether all of the lead was gained when that was looked at last, or nothing has been looked at yet."""
    in_a_row: int = 0
    """Stages that were sent behind others, since one was not."""
    gains: list[tuple[int, int]] = field(default_factory=list)
    """(early, gained) of the stages behind others since the last look."""

    def gained(self, early_ns: int, gained_ns: int) -> None:
        """A stage that was sent so early gained so much."""
        self.gains.append((early_ns, gained_ns))
        if len(self.gains) < STAGES_A_LOOK:
            return
        middle = len(self.gains) // 2
        early_ns = sorted(early for early, _ in self.gains)[middle]
        gains = sorted(gained for _, gained in self.gains)
        gained_ns = max(0, gains[middle])
        unsure_ns = sorted(abs(gained - gained_ns) for gained in gains)[middle] // 2
        self.gains.clear()
        self.grows = gained_ns >= GAINED_FRACTION * early_ns
        if 2 * unsure_ns > early_ns:
            return
        self.network_latency_ns, self.known = (
            (self.network_latency_ns + gained_ns) // 2 if self.known else gained_ns,
            True,
        )
        if gained_ns + unsure_ns >= GAINED_FRACTION * early_ns:
            self.lead_ns = min(MAX_LEAD_NS, max(gained_ns, round(GROWTH * self.lead_ns)))
        else:
            self.lead_ns = (self.lead_ns + min(MAX_LEAD_NS, round(SETTLED * gained_ns))) // 2


class EarlyDispatch:
    """Early dispatch to busy workers: the times from which, and up to which, each worker may get its next batch."""

    def __init__(self, first_lead_ns: int) -> None:
        """Create the state of early dispatch.

        `first_lead_ns`: initial lead of each worker in ns; 0: no early dispatch.
        """
        self._first_lead_ns = first_lead_ns
        self._ready = Timers()
        self._late = Timers()
        self._planned_ends_ns: dict[int, int] = {}
        """When the stages that run are planned to end, by worker id."""
        self._margins_ns: dict[int, int] = {}
        """The margins with which they were planned, by worker id; 0 where a policy plans without any."""
        self._ways: dict[int, _Ways] = {}
        self._paces: dict[tuple[int, str, str, bool], _Pace] = {}
        """How fast stages were, by worker id, partition, shape, and whether they were sent behind another one."""

    @property
    def next_ns(self) -> int:
        """Time in ns at which the next worker becomes ready; NEVER_NS if none is expected."""
        return self._ready.next_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether `pop_ready` or `pop_late` may return a worker."""
        return self._ready.earliest_ns <= now_ns or self._late.earliest_ns <= now_ns

    def pop_ready(self, now_ns: int) -> int | None:
        """Remove and return a worker whose stage is about to end; None if there is none."""
        worker_id = self._ready.pop_next(now_ns)
        if not isinstance(worker_id, int):
            return None
        self._late.set(worker_id, max(now_ns, self._planned_ends_ns[worker_id]) + 1)
        return worker_id

    def pop_late(self, now_ns: int) -> list[int]:
        """Remove and return workers announced by `pop_ready` whose stages are overdue."""
        return [worker_id for _, worker_id in self._late.pop_due(now_ns) if isinstance(worker_id, int)]

    def free_ns(self, now_ns: int, worker_id: int) -> int:
        """Return the planned start, in ns, of a stage that is sent now behind the running one; later than `now_ns`."""
        ways = self._ways[worker_id]
        sooner_ns = min(ways.lead_ns, ways.network_latency_ns) + round(
            (1 - MARGIN_FRACTION_OF_STAGE_AHEAD) * self._margins_ns[worker_id]
        )
        return max(now_ns + 1, self._planned_ends_ns[worker_id] - sooner_ns)

    def is_late(self, now_ns: int, worker_id: int) -> bool:
        """Whether the stage that runs on a worker is overdue."""
        return now_ns > self._planned_ends_ns[worker_id]

    def begins(self, now_ns: int, worker: Worker, flight: InFlightBatch, profile: Profile) -> None:
        """Record that a stage runs on a worker: it was sent now, or early (`InFlightBatch.early_ns`).

        `profile`: latency of the stage, from which its end is expected.
        """
        if not self._first_lead_ns or profile.expected_ns(flight.rows) < MIN_STAGE_NS:
            return
        stage = flight.batch.stages[flight.stage]
        ways = self._ways.get(worker.id)
        if ways is None:
            ways = self._ways[worker.id] = _Ways(self._first_lead_ns)
        early_ns = flight.early_ns or 0
        began_ns = now_ns - min(
            early_ns, ways.network_latency_ns
        )  # of a stage that was sent to an idle worker and ends as this one
        self._planned_ends_ns[worker.id] = began_ns + stage.duration_ns
        expected_ns = profile.expected_ns(flight.rows)
        self._margins_ns[worker.id] = max(0, min(stage.duration_ns, profile.upper_ns(flight.rows)) - expected_ns)
        ways.in_a_row = ways.in_a_row + 1 if early_ns else 0
        if ways.in_a_row >= max(BEHIND_IN_A_ROW, ways.network_latency_ns / (COST * stage.duration_ns)):
            return
        excess = self._excess(worker, stage.partition, profile, behind=early_ns > 0)
        if excess is not None:
            began_ns = now_ns
        else:
            excess = self._excess(worker, stage.partition, profile, behind=False)
        if excess is not None:
            ends_ns = began_ns + profile.expected_ns(flight.rows) + excess.middle_ns
            longest_ns = min(MAX_LEAD_NS, round(MAX_LEAD_FRACTION * (ends_ns - began_ns)))
            unsure_ns = excess.middle_ns - excess.early_ns
            most_ns = MAX_SPREAD_LEADS * ways.lead_ns
            if unsure_ns <= (max(most_ns, UNSURE_AT_FIRST * (ends_ns - began_ns)) if ways.grows else most_ns):
                self._ready.set(worker.id, ends_ns - min(unsure_ns + ways.lead_ns, longest_ns))

    def ends(self, worker_id: int) -> None:
        """Record that the stage on a worker has ended."""
        if self._first_lead_ns:
            self._ready.cancel(worker_id)
            self._late.cancel(worker_id)

    def alone_ns(
        self, worker: Worker, flight: InFlightBatch, stage: int, duration_ns: int, profile: Profile
    ) -> int | None:
        """Return the latency of a stage on an idle worker, in ns, and learn from it; None if unknown.

        `stage`: its index in the batch. `duration_ns`: time from its start to its end. `flight`: the batch, whose
        `early_ns` says how long before that start the stage was sent.
        """
        early_ns, ways = flight.early_ns, self._ways.get(worker.id)
        if ways is None:
            return duration_ns
        if early_ns is None:
            return None
        partition = flight.batch.stages[stage].partition
        key = worker.id, partition, flight.shape, early_ns > 0
        pace = self._paces.get(key)
        if pace is None:
            pace = self._paces[key] = _Pace()
        pace.add(flight.rows, duration_ns)
        if not early_ns:
            return duration_ns
        if alone := self._excess(worker, partition, profile, behind=False):
            ways.gained(early_ns, profile.expected_ns(flight.rows) + alone.middle_ns - duration_ns)
        return duration_ns + min(early_ns, ways.network_latency_ns) if ways.known else None

    def forget(self, worker_id: int) -> None:
        """Forget a worker that was lost; its network latency may differ if it comes back."""
        self.ends(worker_id)
        self._ways.pop(worker_id, None)
        for key in [key for key in self._paces if key[0] == worker_id]:
            del self._paces[key]

    def _excess(self, worker: Worker, partition: str, profile: Profile, *, behind: bool) -> _Excess | None:
        pace = self._paces.get((worker.id, partition, profile.shape, behind))
        return pace.excess(profile) if pace else None


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
            return  # a doomed batch starts no stage, even if its next worker is free before it has failed
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
