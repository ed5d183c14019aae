"""When workers take their next batch: a `lead` before the leg that they run ends, so that they do not idle meanwhile.

What is sent when an answer has come finds a worker that has idled for the ways: the answer's way back, the decision,
the way there. Sent a lead earlier, as long as the ways, it arrives as the leg before it ends. How long they are nobody
says; it is learned from how long legs take, by worker:

- A leg that was sent to an idle worker takes the ways and its execution. One that was sent while another ran, `early`,
  ends an execution after that one, if it was there by then; the worker idled for what early fell short of the ways.
- So what the latter gained is `min(early, ways)`. As long as all of it is gained, the lead grows; where less is, that
  is the ways, and the lead settles a little above them: what comes too early waits, what comes too late idles.
- Where legs scatter so much that their durations do not tell, the lead stays as it is.

A leg is expected to end when the middle one of the latest would; that it may end later is for the planned start of the
next one to say (`free_ns`), which counts from when it is planned to end.
"""

from collections import deque
from dataclasses import dataclass, field

from tidegate.api import Profile, Worker
from tidegate.engine.books import Flight
from tidegate.engine.timers import Timers

FIRST_LEAD_NS = 250_000
"""What live engines begin with: less than any way there and back."""
LONGEST_NS = 5_000_000
"""No lead is longer: so long may a batch be on its way, and what is more urgent behind it."""
KNOWN = 3
"""After so many legs that were sent to an idle worker it is known what they take."""
LATEST_ALONE, LATEST_BEHIND = 8, 16
"""How many legs decide on what they take: sent to an idle worker, and sent behind another leg."""
LEGS_A_LOOK = 16
"""After so many legs behind others the lead is looked at."""
BEHIND_IN_A_ROW = 64
"""After so many the next one is sent to an idle worker: only that one shows what the others gained."""
ALL_GAINED, TOO_LITTLE_GAINED = 0.9, 0.6
"""Shares of `early`: from the one on the lead grows, below the other it shrinks."""
GROWTH, SETTLED = 1.5, 4 / 3
"""By what the lead grows; and how long it is, in ways, once it shrinks."""


class _Pace:
    """What legs of a partition take on a worker, beyond what its profile expects of the middle one of them."""

    __slots__ = ("_alone", "_behind", "_middle", "_profile")

    def __init__(self) -> None:
        self._alone: deque[tuple[int, int]] = deque(maxlen=LATEST_ALONE)
        """Rows and duration of the latest legs that were sent to an idle worker."""
        self._behind: deque[tuple[int, int]] = deque(maxlen=LATEST_BEHIND)
        """The same of those that were sent behind another, from the end of that on."""
        self._profile: Profile | None = None
        self._middle: tuple[int | None, int | None] = (None, None)

    def add(self, rows: int, duration_ns: int, *, behind: bool) -> None:
        """A leg took so long."""
        (self._behind if behind else self._alone).append((rows, duration_ns))
        self._profile = None

    def excess_ns(self, profile: Profile, *, behind: bool) -> int | None:
        """By how much the middle leg exceeds the profile without its margin; None before enough are known."""
        if self._profile is not profile:
            self._profile = profile
            self._middle = (_middle_excess_ns(self._alone, profile), _middle_excess_ns(self._behind, profile))
        return self._middle[behind]


def _middle_excess_ns(legs: deque[tuple[int, int]], profile: Profile) -> int | None:
    if len(legs) < KNOWN:
        return None
    return sorted(duration_ns - _centre_ns(profile, rows) for rows, duration_ns in legs)[len(legs) // 2]


def _centre_ns(profile: Profile, rows: int) -> int:
    return profile.latency_ns(rows) - profile.margin_ns


@dataclass(slots=True)
class _Ways:
    """How far away a worker is, as far as is known."""

    lead_ns: int
    ways_ns: int = LONGEST_NS
    """No longer than that: all of a lead of `lead_ns` was gained."""
    in_a_row: int = 0
    """Legs that were sent behind others, since one was not."""
    gains: list[tuple[int, int]] = field(default_factory=list)
    """(early, gained) of the legs behind others since the last look."""

    def gained(self, early_ns: int, gained_ns: int) -> None:
        """A leg that was sent so early gained so much."""
        self.gains.append((early_ns, gained_ns))
        if len(self.gains) < LEGS_A_LOOK:
            return
        middle = len(self.gains) // 2
        early_ns = sorted(early for early, _ in self.gains)[middle]
        gains = sorted(gained for _, gained in self.gains)
        gained_ns = gains[middle]
        unsure_ns = sorted(abs(gained - gained_ns) for gained in gains)[middle] // 2
        self.gains.clear()
        if 2 * unsure_ns > early_ns:
            return
        if gained_ns + unsure_ns >= ALL_GAINED * early_ns:
            self.ways_ns = LONGEST_NS
            self.lead_ns = min(LONGEST_NS, round(GROWTH * self.lead_ns))
        else:
            self.ways_ns = max(0, gained_ns)
            if gained_ns + unsure_ns < TOO_LITTLE_GAINED * early_ns:
                # What is early is the lead, and by how much later than expected legs end.
                self.lead_ns = max(0, self.lead_ns - early_ns + round(SETTLED * self.ways_ns))


class Overlap:
    """Of each worker that runs a leg: from when on it may be given the next one, and from when on not any more."""

    def __init__(self, first_lead_ns: int) -> None:
        """`first_lead_ns`: how early the first batch is sent to a worker that was not seen before; 0: none ever is."""
        self._first_lead_ns = first_lead_ns
        self._ready = Timers()
        self._late = Timers()
        self._planned_ends_ns: dict[int, int] = {}
        """Of the legs that run, by worker."""
        self._ways: dict[int, _Ways] = {}
        self._paces: dict[tuple[int, str], _Pace] = {}

    @property
    def next_ns(self) -> int | None:
        """When the next worker becomes ready."""
        return self._ready.next_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether `pop_ready` or `pop_late` may have something to give."""
        return self._ready.is_due(now_ns) or self._late.is_due(now_ns)

    def pop_ready(self, now_ns: int) -> list[int]:
        """The workers whose legs are about to end."""
        due = [worker_id for _, worker_id in self._ready.pop_due(now_ns) if isinstance(worker_id, int)]
        for worker_id in due:
            self._late.set(worker_id, max(now_ns, self._planned_ends_ns[worker_id]) + 1)
        return due

    def pop_late(self, now_ns: int) -> list[int]:
        """The workers that were popped by `pop_ready` and whose legs should be over."""
        return [worker_id for _, worker_id in self._late.pop_due(now_ns) if isinstance(worker_id, int)]

    def free_ns(self, now_ns: int, worker_id: int) -> int:
        """From when on a leg counts that is sent now behind the one that runs: later than now."""
        ways = self._ways[worker_id]
        return max(now_ns + 1, self._planned_ends_ns[worker_id] - min(ways.lead_ns, ways.ways_ns))

    def is_late(self, now_ns: int, worker_id: int) -> bool:
        """Whether the leg that runs should be over."""
        return now_ns > self._planned_ends_ns[worker_id]

    def begins(self, now_ns: int, worker: Worker, flight: Flight, profile: Profile) -> None:
        """A flight's leg runs on a worker from now on: it was sent there now, or was on its way (`early_ns`)."""
        if not self._first_lead_ns:
            return
        leg = flight.batch.legs[flight.leg]
        ways = self._ways.get(worker.id)
        if ways is None:
            ways = self._ways[worker.id] = _Ways(self._first_lead_ns)
        early_ns = flight.early_ns or 0
        began_ns = now_ns - min(early_ns, ways.ways_ns)  # of a leg that was sent to an idle worker and ends as this one
        self._planned_ends_ns[worker.id] = began_ns + leg.duration_ns
        ways.in_a_row = ways.in_a_row + 1 if early_ns else 0
        pace = self._paces.get((worker.id, leg.partition))
        if pace is None or ways.in_a_row >= BEHIND_IN_A_ROW:
            return
        excess_ns = pace.excess_ns(profile, behind=True) if early_ns else None
        if excess_ns is not None:
            began_ns = now_ns
        else:
            excess_ns = pace.excess_ns(profile, behind=False)
        if excess_ns is not None:
            ends_ns = began_ns + _centre_ns(profile, flight.rows) + excess_ns
            self._ready.set(worker.id, ends_ns - ways.lead_ns)

    def ends(self, worker_id: int) -> None:
        """The leg that ran on a worker does so no more."""
        if self._first_lead_ns:
            self._ready.cancel(worker_id)
            self._late.cancel(worker_id)

    def alone_ns(self, worker: Worker, flight: Flight, leg: int, duration_ns: int, profile: Profile) -> int:
        """What a leg of a flight would have taken if its worker had idled; `duration_ns` since it ran. Learns from it.

        `flight.early_ns` is that of this leg.
        """
        early_ns, ways = flight.early_ns, self._ways.get(worker.id)
        if ways is None or early_ns is None:
            return duration_ns
        key = worker.id, flight.batch.legs[leg].partition
        pace = self._paces.get(key)
        if pace is None:
            pace = self._paces[key] = _Pace()
        pace.add(flight.rows, duration_ns, behind=early_ns > 0)
        if not early_ns:
            return duration_ns
        alone_ns = pace.excess_ns(profile, behind=False)
        if alone_ns is not None:
            ways.gained(early_ns, _centre_ns(profile, flight.rows) + alone_ns - duration_ns)
        return duration_ns + min(early_ns, ways.ways_ns)

    def forget(self, worker_id: int) -> None:
        """A worker was lost; should it come back, it may be further away."""
        self.ends(worker_id)
        self._ways.pop(worker_id, None)
        for key in [key for key in self._paces if key[0] == worker_id]:
            del self._paces[key]
