"""Serialization of models on one Triton: estimates how much they slow each other down, and decides.

A stage that runs alone takes its standalone latency; beside k others it takes 1 + s * k times as long, where s is the
slowdown: 0 without interference, as on a machine with spare cores, and 1 where one GPU is time-sliced among all that
run.

On a time-sliced GPU, two concurrent batches are both done when the second would have been done alone: serialized, the
first is done sooner, and both meet their prediction. But if a model cannot wait for another one's batch, all run
concurrently, and so they do while the slowdown is unknown: as without Tidegate (decision 77).
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final, NamedTuple

from tidegate.api import Model
from tidegate.observation.timeline_recorder import MAX_RESPONSE_MARGIN_FRACTION

STANDALONE_FRACTION: Final = 0.1
"""Fraction of a stage's time beside others below which it counts as standalone."""
WINDOW_STAGES: Final = 32
"""Number of standalone stages kept for each model, rows and shape; and for each model."""
MIN_STAGES: Final = 4
"""Number of stages from which their latency is known."""
AVERAGE_STAGES: Final = 100
"""Number of concurrent stages over which the slowdown is averaged."""
MIN_STAGES_FOR_VERDICT: Final = 30
"""Number of stages from which the slowdown is known."""
MAX_COUNTED_SLOWDOWN: Final = 2.0
"""Largest slowdown that a stage counts with: longer ones were delayed by something else."""

StageKey = tuple[str, int, str]
"""Key of a stage's stand-alone latency: model, rows and shape."""


@dataclass(slots=True)
class _Stage:
    """One that is with its Triton."""

    batch_id: int
    key: StageKey
    began_ns: int = 0
    busy_ns: int = 0
    """The integral over busy workers when it began."""
    crowded_ns: int = 0
    """The time until then in which there was more than one of them."""


class InterferenceEstimator:
    """Estimator of interference on one Triton.

    Stages of one worker are serialized, those of several run concurrently.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[_Stage]] = {}
        """The stages of each worker that is busy, by its id; the first one runs."""
        self.seen_ns = 0
        """Instant at which a stage was last sent or ended."""
        self._busy_ns = 0
        self._crowded_ns = 0
        self._alone: dict[StageKey, deque[int]] = {}
        """Durations of stages that ran alone."""
        self._latest: dict[str, deque[int]] = {}
        """The same, by model; of stages beside others what they would have taken, once the slowdown is known."""
        self._stages: Counter[str] = Counter()
        """How many have ended well, by model."""
        self._extra_ns = 0.0
        """How much longer stages took beside others; a moving sum, as are the next two."""
        self._beside_ns = 0.0
        """How long others ran meanwhile, each counted."""
        self._shared_ns = 0.0
        """How long at least one of them did."""
        self._count = 0

    def sent(self, now_ns: int, worker_id: int, batch_id: int, key: StageKey) -> None:
        """Record that a stage is sent to a worker, where it runs after those sent before."""
        self._go_on(now_ns)
        queue = self._queues.setdefault(worker_id, deque())
        queue.append(stage := _Stage(batch_id, key))
        if len(queue) == 1:
            self._begin(now_ns, stage)

    def over(self, now_ns: int, worker_id: int, batch_id: int, *, teaches: bool) -> None:
        """Record that a stage has ended. `teaches`: whether it succeeded, so that its latency counts."""
        self._go_on(now_ns)
        queue = self._queues[worker_id]
        stage = next(each for each in queue if each.batch_id == batch_id)
        is_first = stage is queue[0]
        if is_first and teaches:
            took_ns, busy_ns = now_ns - stage.began_ns, self._busy_ns - stage.busy_ns
            self._learn(stage.key, took_ns, busy_ns - took_ns, self._crowded_ns - stage.crowded_ns)
        queue.remove(stage)
        if not queue:
            del self._queues[worker_id]
        elif is_first:
            self._begin(now_ns, queue[0])

    @property
    def value(self) -> float | None:
        """Slowdown, 0 to `MAX_COUNTED_SLOWDOWN`; None before it is known."""
        if self._count < MIN_STAGES_FOR_VERDICT or not self._shared_ns:
            return None
        others = self._beside_ns / self._shared_ns
        left_ns = self._beside_ns - others * self._extra_ns
        return min(MAX_COUNTED_SLOWDOWN, max(0.0, self._extra_ns / left_ns)) if left_ns > 0 else MAX_COUNTED_SLOWDOWN

    @property
    def active(self) -> frozenset[str]:
        """Models that have run more than a few stages."""
        return frozenset(model for model, count in self._stages.items() if count >= MIN_STAGES)

    def took_ns(self, model: str) -> tuple[int, int] | None:
        """Return the median and the 90th percentile, in ns, of a model's stand-alone stages; None if unknown."""
        latest = self._latest.get(model, ())
        if len(latest) < MIN_STAGES:
            return None
        return round(median(latest)), round(quantiles(latest, n=10)[-1])

    def forget(self) -> None:
        """Forget the slowdown, but keep the standalone latencies."""
        self._extra_ns = self._beside_ns = self._shared_ns = 0.0
        self._count = 0

    def _go_on(self, now_ns: int) -> None:
        since_ns, busy = now_ns - self.seen_ns, len(self._queues)
        self._busy_ns += busy * since_ns
        if busy > 1:
            self._crowded_ns += since_ns
        self.seen_ns = now_ns

    def _begin(self, now_ns: int, stage: _Stage) -> None:
        stage.began_ns, stage.busy_ns, stage.crowded_ns = now_ns, self._busy_ns, self._crowded_ns

    def _learn(self, key: StageKey, took_ns: int, beside_ns: int, shared_ns: int) -> None:
        """A stage took so long; others ran so long meanwhile, each counted, and some of them for `shared_ns`."""
        self._stages[key[0]] += 1
        alone = self._alone.get(key)
        if shared_ns <= STANDALONE_FRACTION * took_ns:
            if alone is None:
                alone = self._alone[key] = deque(maxlen=WINDOW_STAGES)
            alone.append(took_ns)
            self._remember(key[0], took_ns)
            return
        if alone is not None and len(alone) >= MIN_STAGES:
            alone_ns = median(alone)
            extra_ns = min(took_ns - alone_ns, MAX_COUNTED_SLOWDOWN * alone_ns * beside_ns / took_ns)
            keep = 1 - 1 / AVERAGE_STAGES
            self._extra_ns = keep * self._extra_ns + extra_ns
            self._beside_ns = keep * self._beside_ns + beside_ns
            self._shared_ns = keep * self._shared_ns + shared_ns
            self._count += 1
        if (value := self.value) is not None:  # what it would have taken alone
            self._remember(key[0], round(took_ns - beside_ns * value / (1 + value * beside_ns / shared_ns)))

    def _remember(self, model: str, alone_ns: int) -> None:
        self._latest.setdefault(model, deque(maxlen=WINDOW_STAGES)).append(alone_ns)


MIN_SLOWDOWN: Final = 0.7
"""Slowdown from which models are serialized: below it, concurrency gains more."""
MAX_LATENCY_RATIO: Final = 1.25
"""Ratio of batch latency to the original limit up to which serialization continues."""
HOLD_NS: Final = 600_000_000_000
"""Time in ns after which serialization is reviewed, because no interference is visible meanwhile."""
REST_NS: Final = 60_000_000_000
"""Time in ns without serialization after it did not help; doubled after each further failure."""
MAX_REST_NS: Final = 64 * REST_NS
WINDOW_REQUESTS: Final = 100
"""Number of requests of a model from which its attainment is estimated."""
MAX_MISS_RATE_INCREASE: Final = 0.02
"""Maximum increase of a model's miss rate by serialization, as a fraction, beside chance, which is large for few
requests."""
CHANCE_DEVIATIONS: Final = 2.0
"""Number of standard deviations of attainment that count as chance."""


class ModelOutcomes(NamedTuple):
    """Outcomes of a model's requests since Tidegate started."""

    on_time: int
    all: int


class SerializationController:
    """Controller that decides for one Triton whether the execution of its models is serialized."""

    def __init__(self) -> None:
        self.slowdown = InterferenceEstimator()
        self._group: frozenset[str] = frozenset()
        self._changed_ns = 0
        """When the group became what it is."""
        self._rest_ns = 0
        """Time from then on without serialization."""
        self._ended: Mapping[str, ModelOutcomes] = {}
        """Outcomes when the current state began."""
        self._side_by_side: dict[str, float] = {}
        """The share of each model's requests that was on time before they began with turns."""
        self.why = ""
        """Reason for the current group, for the log."""

    @property
    def group(self) -> frozenset[str]:
        """Models that are serialized with each other; empty if none are."""
        return self._group

    def decide(self, now_ns: int, models: Mapping[str, Model], ended: Mapping[str, ModelOutcomes]) -> bool:
        """Review which of these models are serialized; return whether that has changed."""
        active = self.slowdown.active & models.keys()
        if not self._group:
            value = self.slowdown.value
            rested = now_ns >= self._changed_ns + self._rest_ns
            if not rested or value is None or value < MIN_SLOWDOWN or not self._bear(active, models, 1.0):
                return False
            self._side_by_side = self._shares(ended)
            self._become(
                now_ns, active, ended, f"beside each other batches take {value:.2f} times longer per other one"
            )
            return True
        if self._group < active and self._bear(active, models, 1.0):
            self._become(now_ns, active, ended, "there are more of them")
        elif self._group != active or not self._bear(active, models, MAX_LATENCY_RATIO):
            self.rest(now_ns, ended, "one of them cannot wait for another one's batches")
        elif lost := self._lost(ended):
            self.rest(now_ns, ended, f"fewer requests of {lost} were on time")
        elif now_ns >= self._changed_ns + HOLD_NS:
            self._rest_ns = 0
            self._become(now_ns, frozenset(), ended, "to see whether they are still in each other's way")
        else:
            return False
        return True

    def rest(self, now_ns: int, ended: Mapping[str, ModelOutcomes], why: str) -> None:
        """Suspend serialization for some time.

        `why`: text for the log.
        """
        self._rest_ns = min(MAX_REST_NS, max(REST_NS, 2 * self._rest_ns))
        self._become(now_ns, frozenset(), ended, why)

    def _become(self, now_ns: int, group: frozenset[str], ended: Mapping[str, ModelOutcomes], why: str) -> None:
        self._group, self._changed_ns, self._ended, self.why = group, now_ns, dict(ended), why
        if not group:
            self.slowdown.forget()

    def _shares(self, ended: Mapping[str, ModelOutcomes]) -> dict[str, float]:
        """Return the attainment of each model since the group formed, for models with enough requests."""
        shares = {}
        for name, (on_time, count) in ended.items():
            before = self._ended.get(name, ModelOutcomes(0, 0))
            if count - before.all >= WINDOW_REQUESTS:
                shares[name] = (on_time - before.on_time) / (count - before.all)
        return shares

    def _lost(self, ended: Mapping[str, ModelOutcomes]) -> str:
        """A model of the group that is worse off than side by side; empty where none is known to be."""
        for name, share in self._shares(ended).items():
            count = ended[name].all - self._ended.get(name, ModelOutcomes(0, 0)).all
            chance = CHANCE_DEVIATIONS * math.sqrt(share * (1 - share) / count)
            if name in self._group and share < self._side_by_side.get(name, 1.0) - MAX_MISS_RATE_INCREASE - chance:
                return name
        return ""

    def _bear(self, group: frozenset[str], models: Mapping[str, Model], tolerated: float) -> bool:
        """Whether each model of a group can wait for a batch of any other, given this multiple of its time."""
        took = {name: times for name in group if (times := self.slowdown.took_ns(name))}
        if len(took) < len(group) or len(group) < 2:
            return False
        for name, (mine_ns, _) in took.items():
            longest_ns = max(nine_of_ten_ns for other, (_, nine_of_ten_ns) in took.items() if other != name)
            slo_ns = models[name].slo_ns
            # Without an SLO no request is late, but none should wait for longer than two at a time would take.
            left_ns = 2 * mine_ns if slo_ns is None else slo_ns * (1 - MAX_RESPONSE_MARGIN_FRACTION) - mine_ns
            if longest_ns > tolerated * left_ns:
                return False
        return True
