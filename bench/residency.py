"""Models for which there is no room in memory: what Tidegate's residency loads and evicts, beside least recently used.

Simulated: one Triton, one load at a time, requests by Zipf's law over models whose ranks drift. A request is on time if
its model is in memory, or is loaded within the deadline. `python -m bench.residency` prints a table.
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

LOADS: Final = (
    (0.9, 60.0, 2.0, 0.7),
    (0.9, 10.0, 2.0, 0.7),
    (1.2, 60.0, 2.0, 0.7),
    (1.2, 10.0, 2.0, 0.7),
    (1.2, 10.0, 10.0, 0.7),
    (1.2, 10.0, 2.0, 0.0),
    (1.6, 10.0, 10.0, 0.7),
    (1.2, 2.0, 2.0, 0.7),
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


def simulated(load: Load, evictor: Residency) -> Outcome:
    """Serve the requests; models load one after the other, those that are asked for first come first."""
    ready_at: dict[str, float] = {}
    """When each resident model is loaded."""
    loader_free, on_time, cold, loads = 0.0, 0, 0, 0
    ends: list[tuple[float, str]] = []
    for now, number in load.requests:
        model = str(number)
        while ends and ends[0][0] <= now:
            heapq.heappop(ends)
        evictor.on_request(model)
        if model not in ready_at:
            loaded = ready_at.keys() - {name for _, name in ends}
            evictions = evictor.evictions_for(model, loaded.__contains__)
            if evictions is None:
                cold += 1
                continue
            for each in evictions:
                evictor.on_unloaded(each)
                del ready_at[each]
            load_s = MIN_LOAD_S + load.memory[number] / LOAD_BYTES_PER_S
            loader_free = max(loader_free, now) + load_s
            ready_at[model] = loader_free
            heapq.heappush(ends, (loader_free, model))
            evictor.on_loaded(model, round(load_s * 1e9))
            loads += 1
        cold += ready_at[model] > now
        on_time += ready_at[model] <= now + DEADLINE_S
    return Outcome(on_time / len(load.requests), cold / len(load.requests), loads)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3, help="Number of runs of each load.")
    seeds = parser.parse_args().seeds
    print("exponent drift rate spread | cold %: ours  LRU  difference | loads: ours  LRU | on time %: ours  LRU")
    for exponent, drift_s, rate_rps, spread in LOADS:
        runs = []
        for seed in range(seeds):
            load = drawn(seed, exponent, drift_s, rate_rps, spread)
            both = (with_known_memory(kind(load.budget), load) for kind in (Residency, LeastRecentlyUsed))
            runs.append(tuple(simulated(load, residency) for residency in both))
        gains = [100 * (mine.cold - other.cold) for mine, other in runs]
        scatter = stdev(gains) if seeds > 1 else 0.0
        cold, loads, on_time = (
            [mean(getattr(run[which], name) for run in runs) for which in (0, 1)]
            for name in ("cold", "loads", "attainment")
        )
        print(
            f"{exponent:8} {drift_s:5.0f} {rate_rps:4.0f} {spread:6} | {100 * cold[0]:12.1f} {100 * cold[1]:4.1f} "
            f"{mean(gains):5.1f} +- {scatter:3.1f} | {loads[0]:11.0f} {loads[1]:4.0f} | "
            f"{100 * on_time[0]:15.1f} {100 * on_time[1]:4.1f}"
        )


if __name__ == "__main__":
    main()
