"""The slowdown of a Triton's models by each other, learned from the legs that it runs.

A leg that runs alone takes its time; beside k others it takes 1 + s * k times as long, where s is the slowdown: 0 where
nobody is in the way, as on a machine with cores to spare, and 1 where one GPU is sliced among all that run.
"""

from collections import Counter, deque
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

ALONE: Final = 0.1
"""A leg that was beside others for a smaller share of its time ran alone."""
LATEST: Final = 32
"""So many legs that ran alone are remembered of each model, rows and shape; and of each model."""
FEWEST: Final = 4
"""After so many it is known what they take."""
MEMORY: Final = 100
"""Over how many legs beside others the slowdown is an average."""
KNOWN: Final = 30
"""After so many it is known."""
WORST: Final = 2.0
"""No leg counts for a larger slowdown: what takes longer was held up by something else."""

LegKey = tuple[str, int, str]
"""What tells how long a leg takes alone: its model, rows and shape."""


@dataclass(slots=True)
class _Leg:
    """One that is with its Triton."""

    batch_id: int
    key: LegKey
    began_ns: int = 0
    busy_ns: int = 0
    """The integral over busy workers when it began."""
    crowded_ns: int = 0
    """The time until then in which there was more than one of them."""


class Slowdown:
    """One Triton's. The legs of a worker run one after the other, those of several beside each other."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[_Leg]] = {}
        """The legs of each worker that is busy, by its id; the first one runs."""
        self.seen_ns = 0
        """When a leg was sent or over last."""
        self._busy_ns = 0
        self._crowded_ns = 0
        self._alone: dict[LegKey, deque[int]] = {}
        """What legs took that ran alone."""
        self._latest: dict[str, deque[int]] = {}
        """The same, by model; of legs beside others what they would have taken, once the slowdown is known."""
        self._legs: Counter[str] = Counter()
        """How many have ended well, by model."""
        self._extra_ns = 0.0
        """How much longer legs took beside others; a moving sum, as are the next two."""
        self._beside_ns = 0.0
        """How long others ran meanwhile, each counted."""
        self._shared_ns = 0.0
        """How long at least one of them did."""
        self._count = 0

    def sent(self, now_ns: int, worker_id: int, batch_id: int, key: LegKey) -> None:
        """A batch's leg is sent to a worker: it runs once those that were sent there before are over."""
        self._go_on(now_ns)
        queue = self._queues.setdefault(worker_id, deque())
        queue.append(leg := _Leg(batch_id, key))
        if len(queue) == 1:
            self._begin(now_ns, leg)

    def over(self, now_ns: int, worker_id: int, batch_id: int, *, teaches: bool) -> None:
        """A leg that was sent runs no more. `teaches`: whether it has ended well, so that its time tells something."""
        self._go_on(now_ns)
        queue = self._queues[worker_id]
        leg = next(each for each in queue if each.batch_id == batch_id)
        is_first = leg is queue[0]
        if is_first and teaches:
            took_ns, busy_ns = now_ns - leg.began_ns, self._busy_ns - leg.busy_ns
            self._learn(leg.key, took_ns, busy_ns - took_ns, self._crowded_ns - leg.crowded_ns)
        queue.remove(leg)
        if not queue:
            del self._queues[worker_id]
        elif is_first:
            self._begin(now_ns, queue[0])

    @property
    def value(self) -> float | None:
        """The slowdown, 0 to `WORST`; None before it is known."""
        if self._count < KNOWN or not self._shared_ns:
            return None
        others = self._beside_ns / self._shared_ns
        left_ns = self._beside_ns - others * self._extra_ns
        return min(WORST, max(0.0, self._extra_ns / left_ns)) if left_ns > 0 else WORST

    @property
    def active(self) -> frozenset[str]:
        """The models that have run more than a few legs."""
        return frozenset(model for model, count in self._legs.items() if count >= FEWEST)

    def took_ns(self, model: str) -> tuple[int, int] | None:
        """What legs of a model take alone: half of them, and nine of ten, at most; None before that is known."""
        latest = self._latest.get(model, ())
        if len(latest) < FEWEST:
            return None
        return round(median(latest)), round(quantiles(latest, n=10)[-1])

    def forget(self) -> None:
        """The slowdown is to be learned anew; what legs take alone is known still."""
        self._extra_ns = self._beside_ns = self._shared_ns = 0.0
        self._count = 0

    def _go_on(self, now_ns: int) -> None:
        since_ns, busy = now_ns - self.seen_ns, len(self._queues)
        self._busy_ns += busy * since_ns
        if busy > 1:
            self._crowded_ns += since_ns
        self.seen_ns = now_ns

    def _begin(self, now_ns: int, leg: _Leg) -> None:
        leg.began_ns, leg.busy_ns, leg.crowded_ns = now_ns, self._busy_ns, self._crowded_ns

    def _learn(self, key: LegKey, took_ns: int, beside_ns: int, shared_ns: int) -> None:
        """A leg took so long; others ran so long meanwhile, each counted, and some of them for `shared_ns`."""
        self._legs[key[0]] += 1
        alone = self._alone.get(key)
        if shared_ns <= ALONE * took_ns:
            if alone is None:
                alone = self._alone[key] = deque(maxlen=LATEST)
            alone.append(took_ns)
            self._remember(key[0], took_ns)
            return
        if alone is not None and len(alone) >= FEWEST:
            alone_ns = median(alone)
            extra_ns = min(took_ns - alone_ns, WORST * alone_ns * beside_ns / took_ns)
            keep = 1 - 1 / MEMORY
            self._extra_ns = keep * self._extra_ns + extra_ns
            self._beside_ns = keep * self._beside_ns + beside_ns
            self._shared_ns = keep * self._shared_ns + shared_ns
            self._count += 1
        if (value := self.value) is not None:  # what it would have taken alone
            self._remember(key[0], round(took_ns - beside_ns * value / (1 + value * beside_ns / shared_ns)))

    def _remember(self, model: str, alone_ns: int) -> None:
        self._latest.setdefault(model, deque(maxlen=LATEST)).append(alone_ns)
