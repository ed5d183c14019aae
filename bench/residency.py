"""Models for which there is no room in memory: what Tidegate's residency loads and evicts, beside least recently used.

Simulated: one Triton, one load at a time, requests by Zipf's law over models whose ranks drift. A request is on time if
its model is in memory, or is loaded within the deadline. Once the Triton restarts, and has lost all models.
`python -m bench.residency` prints two tables: the whole run, and the minutes after the restart, both with and without
loads before requests.
"""

import argparse
import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Final

from tidegate.control.residency import Residency

MODELS: Final = 100
ROOM_MODELS: Final = 20
GIB: Final = 1 << 30
LOAD_BYTES_PER_S: Final = 2 * GIB
MIN_LOAD_S: Final = 0.3
RUN_S: Final = 3600.0
DEADLINE_S: Final = 10.0
"""Deadline of a request, which a load may use up."""
RESTART_S: Final = 1800.0
"""When the Triton restarts."""
AFTER_RESTART_S: Final = 300.0
"""Time after the restart that is looked at by itself."""

LOADS: Final = (
    (0.9, 60.0, 2.0, 0.7),
    (0.9, 10.0, 2.0, 0.7),
    (1.2, 60.0, 2.0, 0.7),
    (1.2, 10.0, 2.0, 0.7),
    (1.2, 10.0, 10.0, 0.7),
    (1.2, 10.0, 2.0, 0.0),
    (1.6, 10.0, 10.0, 0.7),
    (1.2, 2.0, 2.0, 0.7),
    (1.2, 60.0, 0.2, 0.7),
)
"""Exponent of Zipf's law, seconds between two drifts, requests per second, and spread of the sizes."""


@dataclass(frozen=True)
class Load:
    """Models and requests of one run."""

    memory: Sequence[int]
    """Memory of each model, in bytes."""
    requests: Sequence[tuple[float, int]]
    """Arrival in seconds, and model."""

    @property
    def budget(self) -> int:
        """Room for `ROOM_MODELS` of mean size."""
        return sum(self.memory) * ROOM_MODELS // MODELS


def drawn(seed: int, exponent: float, drift_s: float, rate_rps: float, spread: float) -> Load:
    """Draw a run: every `drift_s` seconds two ranks are exchanged; `spread`: sigma of the lognormal sizes."""
    draw = random.Random(seed)
    memory = [round(GIB * draw.lognormvariate(0.0, spread)) for _ in range(MODELS)]
    weights = [1 / rank**exponent for rank in range(1, MODELS + 1)]
    by_rank = list(range(MODELS))
    draw.shuffle(by_rank)
    requests, now, drifted = [], 0.0, 0.0
    while (now := now + draw.expovariate(rate_rps)) < RUN_S:
        while drifted + drift_s < now:
            drifted += drift_s
            first, second = draw.sample(range(MODELS), 2)
            by_rank[first], by_rank[second] = by_rank[second], by_rank[first]
        requests.append((now, by_rank[draw.choices(range(MODELS), weights)[0]]))
    return Load(memory, requests)


class LeastRecentlyUsed(Residency):
    """Residency that evicts the models whose last requests are the longest ago."""

    def __init__(self, budget_bytes: int) -> None:
        super().__init__(budget_bytes)
        self._events = itertools.count()

    def _value(self, _known: Any) -> float:  # noqa: ANN401 - private to Residency
        return float(next(self._events))

    def _without_spare(self, chosen: list[str], _spare: int) -> tuple[str, ...]:
        return tuple(chosen)


VARIANTS: Final = ((Residency, True), (Residency, False), (LeastRecentlyUsed, False))
"""Residency of a run, and whether models are loaded before requests."""


def with_known_memory(residency: Residency, load: Load) -> Residency:
    """Tell a residency what every model takes, as if it had been measured; return it."""
    for number, memory in enumerate(load.memory):
        residency.set_memory(str(number), memory)
    return residency


@dataclass(frozen=True)
class Outcome:
    """Result of one run."""

    attainment: float
    cold: float
    """Fraction of requests whose model was not in memory."""
    loads: int
    prefetches: int
    """Number of loads before a request."""
    cold_after_restart: float
    """Fraction of requests within `AFTER_RESTART_S` of the restart whose model was not in memory."""


class SimulatedTriton:
    """Triton that loads one model after the other, those that are asked for first come first."""

    def __init__(self, load: Load, evictor: Residency) -> None:
        self._memory = load.memory
        self._evictor = evictor
        self.ready_at: dict[str, float] = {}
        """When each resident model is loaded."""
        self._free_at = 0.0
        """When the last load ends."""
        self._demanded_at = 0.0
        """When the last load for a request ends."""
        self._ends: list[tuple[float, str]] = []
        self.loads = self.prefetches = 0

    def load(self, now: float, model: str) -> bool:
        """Load a model, and evict for it; return False if that is impossible now."""
        while self._ends and self._ends[0][0] <= now:
            heapq.heappop(self._ends)
        loaded = self.ready_at.keys() - {name for _, name in self._ends}
        evictions = self._evictor.evictions_for(model, loaded.__contains__)
        if evictions is None:
            return False
        for each in evictions:
            self._evictor.on_unloaded(each)
            del self.ready_at[each]
        load_s = MIN_LOAD_S + self._memory[int(model)] / LOAD_BYTES_PER_S
        self._free_at = self.ready_at[model] = max(self._free_at, now) + load_s
        self._demanded_at = self._free_at
        heapq.heappush(self._ends, (self._free_at, model))
        self._evictor.on_loaded(model, round(load_s * 1e9))
        self.loads += 1
        return True

    def look(self, now: float) -> None:
        """Load a model before its next request, as Tidegate does each second while nothing else is loaded."""
        if self._free_at > now:
            return
        quiet_ns = round((now - self._demanded_at) * 1e9)
        if model := self._evictor.to_prefetch(round(now * 1e9), quiet_ns, lambda _: True):
            demanded_at = self._demanded_at
            self.prefetches += self.load(now, model)
            self._demanded_at = demanded_at

    def restart(self, now: float) -> None:
        """Lose all models."""
        for model in self.ready_at:
            self._evictor.on_unloaded(model)
        self.ready_at.clear()
        self._ends.clear()
        self._free_at = now


def simulated(load: Load, evictor: Residency, *, prefetches: bool) -> Outcome:
    """Serve the requests. `prefetches`: whether models are loaded before requests, too."""
    triton = SimulatedTriton(load, evictor)
    on_time, looked_s, has_restarted = 0, 0.0, False
    is_cold: list[bool] = []
    for now, number in load.requests:
        model = str(number)
        while looked_s + 1 <= now:
            looked_s += 1
            if looked_s >= RESTART_S and not has_restarted:
                triton.restart(looked_s)
                has_restarted = True
            if prefetches:
                triton.look(looked_s)
        evictor.on_request(model, round(now * 1e9))
        if model not in triton.ready_at and not triton.load(now, model):
            is_cold.append(True)
            continue
        is_cold.append(triton.ready_at[model] > now)
        on_time += triton.ready_at[model] <= now + DEADLINE_S
    after = [
        cold
        for (now, _), cold in zip(load.requests, is_cold, strict=True)
        if RESTART_S <= now < RESTART_S + AFTER_RESTART_S
    ]
    return Outcome(on_time / len(is_cold), mean(is_cold), triton.loads, triton.prefetches, mean(after))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3, help="Number of runs of each load.")
    seeds = parser.parse_args().seeds
    tables: dict[str, list[str]] = {"whole run": [], "five minutes after a restart": []}
    for exponent, drift_s, rate_rps, spread in LOADS:
        runs = []
        for seed in range(seeds):
            load = drawn(seed, exponent, drift_s, rate_rps, spread)
            runs.append(
                [
                    simulated(load, with_known_memory(evictor(load.budget), load), prefetches=prefetches)
                    for evictor, prefetches in VARIANTS
                ]
            )
        head = f"{exponent:8} {drift_s:5.0f} {rate_rps:4.1f} {spread:6} |"
        whole = [
            " ".join(f"{mean(number(run[which]) for run in runs):{width}}" for which in range(len(VARIANTS)))
            for number, width in (
                (lambda each: 100 * each.cold, "6.1f"),
                (lambda each: float(each.loads), "6.0f"),
                (lambda each: 100 * each.attainment, "6.1f"),
            )
        ]
        tables["whole run"].append(f"{head} {' | '.join(whole)} | {mean(run[0].prefetches for run in runs):10.0f}")
        after = " ".join(f"{mean(100 * run[which].cold_after_restart for run in runs):6.1f}" for which in (0, 1))
        gains = [100 * (run[0].cold_after_restart - run[1].cold_after_restart) for run in runs]
        scatter = stdev(gains) if seeds > 1 else 0.0
        tables["five minutes after a restart"].append(f"{head} {after} {mean(gains):6.1f} +- {scatter:3.1f}")
    of_each = "ahead without LRU"
    print(f"exponent drift rate spread | cold %: {of_each} | loads: {of_each} | on time %: {of_each} | loaded ahead")
    print("\n".join(tables["whole run"]))
    print("five minutes after a restart, cold %: ahead, without, difference")
    print("\n".join(tables["five minutes after a restart"]))


if __name__ == "__main__":
    main()
