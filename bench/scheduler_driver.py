"""A minimal driver of an engine: arrivals from a table, and workers that take exactly the planned time."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

from tidegate.api import Model, Profile, Request, RequestArrived, Setup, StageFinished, Worker, ms_to_ns
from tidegate.engine import AnyEffect, ClockAdvanced, Engine, StartStage
from tidegate.host import Plugins

MAX_ROWS = 64
ALPHA_MS, BETA_MS = 1.053, 5.072
"""Profile of every model: ResNet50 of the Symphony paper, Table 2, in ms."""
BUSY, BATCH = 0.8, 8
"""Share of time that workers are busy, with batches of this many rows."""


@dataclass(frozen=True)
class Lap:
    """Figures of a part of a drive."""

    requests: int
    events: int
    """Number of calls of `Engine.handle`: arrivals, ends of executions, timers."""
    batches: int
    dropped: int
    busy: float
    """Share of the workers' time that they were busy."""
    cpu_s: float
    """CPU time in seconds, which other processes affect only through caches."""

    @property
    def rps(self) -> float:
        """Requests per second of one core."""
        return self.requests / self.cpu_s

    @property
    def us_per_request(self) -> float:
        """Microseconds per request."""
        return self.cpu_s / self.requests * 1e6

    @property
    def us_per_event(self) -> float:
        """Microseconds per event."""
        return self.cpu_s / self.events * 1e6


def setup_of(names: Sequence[str], worker_ids: Sequence[int]) -> Setup:
    """Return equal models, each hosted by every one of equal workers.

    The SLO allows a batch to run after its rows arrived at the model's rate, so that batches have one size for any
    number of models and workers, and only the scheduler's work differs.
    """
    latency_ns = ms_to_ns(ALPHA_MS * BATCH + BETA_MS)
    slo_ns = round(latency_ns * (1 + len(names) / (BUSY * len(worker_ids))))
    return Setup(
        models=tuple(Model(name, MAX_ROWS, slo_ns) for name in names),
        workers=tuple(Worker(index, f"gpu{index}", tuple(names)) for index in worker_ids),
        profiles=tuple(Profile.linear(name, alpha_ms=ALPHA_MS, beta_ms=BETA_MS, max_rows=MAX_ROWS) for name in names),
    )


class Drive:
    """One engine with one policy, and Poisson arrivals at equal rates per model, at the load of `setup_of`."""

    def __init__(self, setup: Setup, policy: str, options: dict[str, object], seed: int = 0) -> None:
        self.engine = Engine(Plugins.installed().make_policy(policy, setup, options), name=policy, strict=True)
        self._names = [model.name for model in setup.models]
        self._slo_ns = setup.models[0].slo_ns or 0
        self._workers = len(setup.workers)
        self._per_ns = BUSY * self._workers * BATCH / ms_to_ns(ALPHA_MS * BATCH + BETA_MS)
        self._rng = random.Random(seed)
        self._ends: list[tuple[int, int, StageFinished]] = []
        self._now_ns = self._requests = self._batches = self._busy_ns = 0

    def warm_up(self) -> None:
        """Run for twice the SLO, until queues and workers are in a steady state."""
        self.lap(2 * BATCH * max(len(self._names), self._workers))

    def lap(self, requests: int) -> Lap:
        """Run for `requests` requests. The CPU time has the engine, its policy and this loop."""
        rng = self._rng
        gaps_ns = (round(rng.expovariate(self._per_ns)) for _ in range(requests))
        instants = list(accumulate(gaps_ns, initial=self._now_ns))[1:]
        models = rng.choices(self._names, k=requests)
        began_ns, batches, busy_ns = self._now_ns, self._batches, self._busy_ns
        dropped = self.engine.tally.dropped.total()
        clock_s = time.process_time()
        events = self._run(instants, models)
        cpu_s = time.process_time() - clock_s
        return Lap(
            requests=requests,
            events=events,
            batches=self._batches - batches,
            dropped=self.engine.tally.dropped.total() - dropped,
            busy=(self._busy_ns - busy_ns) / (self._workers * (self._now_ns - began_ns)),
            cpu_s=cpu_s,
        )

    def _run(self, instants: list[int], models: list[str]) -> int:
        engine, ends = self.engine, self._ends
        events = 0
        for at_ns, model in zip(instants, models, strict=True):
            while True:
                end_ns = ends[0][0] if ends else at_ns
                wake_ns = engine.next_wake_ns
                if wake_ns is not None and wake_ns <= end_ns and wake_ns < at_ns:
                    effects = engine.handle(ClockAdvanced(max(wake_ns, engine.now_ns)))
                elif end_ns < at_ns:
                    effects = engine.handle(heappop(ends)[2])
                else:
                    break
                events += 1
                if effects:
                    self._begin(effects)
            self._requests += 1
            events += 1
            request = Request(self._requests, model, 1, at_ns, at_ns + self._slo_ns)
            if effects := engine.handle(RequestArrived(at_ns, request)):
                self._begin(effects)
        self._now_ns = instants[-1]
        return events

    def _begin(self, effects: list[AnyEffect]) -> None:
        for effect in effects:
            if isinstance(effect, StartStage):  # what may be given up (CancelStage) runs to its end, as on Triton
                stage = effect.batch.stages[effect.stage]
                self._batches += 1
                self._busy_ns += stage.duration_ns
                end_ns = self.engine.now_ns + stage.duration_ns
                batch_id = effect.batch.id
                event = StageFinished(end_ns, batch_id, effect.stage, stage.worker_id, self.engine.now_ns, end_ns)
                heappush(self._ends, (end_ns, batch_id, event))
