"""Early dispatch: when a busy worker gets its next batch, a `lead` before its running stage ends.

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
from dataclasses import dataclass, field
from math import sqrt

from tidegate.api import Profile, Worker
from tidegate.engine.state_tables import InFlightBatch
from tidegate.engine.timers import Timers

FIRST_LEAD_NS = 250_000
"""Initial lead of live engines in ns: less than any network round trip."""
MAX_NS = 5_000_000
"""Maximum lead in ns before the usual end of the running stage; the batch may block the worker for that long.

The lead is at most the fraction `MAX_LEAD_FRACTION` of that stage, too.
"""
MAX_LEAD_FRACTION = 0.75
SHORTEST_NS = 1_500_000
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
ALL_GAINED = 0.9
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
        """None before enough stages are known."""
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
    """How long the ways are; at least, where all of the lead was gained."""
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
        self.grows = gained_ns >= ALL_GAINED * early_ns
        if 2 * unsure_ns > early_ns:
            return
        self.network_latency_ns, self.known = (
            (self.network_latency_ns + gained_ns) // 2 if self.known else gained_ns,
            True,
        )
        if gained_ns + unsure_ns >= ALL_GAINED * early_ns:
            self.lead_ns = min(MAX_NS, max(gained_ns, round(GROWTH * self.lead_ns)))
        else:
            self.lead_ns = (self.lead_ns + min(MAX_NS, round(SETTLED * gained_ns))) // 2


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
        if not self._first_lead_ns or profile.expected_ns(flight.rows) < SHORTEST_NS:
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
            longest_ns = min(MAX_NS, round(MAX_LEAD_FRACTION * (ends_ns - began_ns)))
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
