"""Model of Triton's own batcher, fitted to the batch sizes in Triton's statistics.

Its thread has to wake up, and requests that arrive until then join the batch, so bursts have fewer batches of one row.
The wake-up time depends on the machine. It is fitted to batch sizes only; attainment, by which the simulator is
checked, is not used.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Final

from tidegate.api import NS_PER_MS
from tidegate.host import Plugins
from tidegate.schemas import tuned_settings
from tidegate.sim.observed_profiles import TritonBatchStats
from tidegate.sim.shadow_messages import BypassedRequest, ShadowSetup
from tidegate.sim.shadow_replay import ShadowReplayResult, replay_under_batcher

BEGINS_MS: Final = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Wake-up times of an idle instance to try, in ms; the first is used if batch sizes show nothing."""
MEAN_SIZE_TOLERANCE: Final = 0.03
"""Relative tolerance of the mean batch size: about the difference between a thousand batches by chance."""
MAX_TRIES: Final = 2
"""Maximum number of further wake-up times to try for each report; each is a simulation."""


class OwnBatcher:
    """Model of the Tritons' own batchers, which keeps what it learned between reports."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._at = 0
        self.begin_ms: float | None = None
        """How long an idle instance takes to begin; None where the Tritons did not tell of any batch."""

    def took_ns(
        self,
        begin: ShadowSetup,
        seen: Sequence[BypassedRequest],
        batch_stats: Mapping[str, TritonBatchStats],
        between_ns: tuple[int, int],
    ) -> list[int | None]:
        """Return the latency of each request in ns, simulated with Triton's batcher; None if it had no response.

        `seen`: requests of the window. `batch_stats`: by model. `between_ns`: start and end of the period of
        these statistics in ns. Raises PluginError.
        """
        counted = [each for of_model in batch_stats.values() for each in of_model.sizes]
        if not counted:
            self.begin_ms = None
            return self._replay(begin, seen, batch_stats, BEGINS_MS[0]).took_ns

        def replay(at: int) -> tuple[float, ShadowReplayResult]:
            replayed = self._replay(begin, seen, batch_stats, BEGINS_MS[at])
            simulated = [
                (rows, 1)
                for ended_ns, model, rows in replayed.batches
                if batch_stats[model].sizes and between_ns[0] <= ended_ns < between_ns[1]
            ]
            return _mean_log(simulated) - _mean_log(counted), replayed

        off, best = replay(self._at)
        step, was_at = (1 if off < 0 else -1), self._at
        for at in range(was_at + step, was_at + step * (MAX_TRIES + 1), step):
            if abs(off) <= MEAN_SIZE_TOLERANCE or not 0 <= at < len(BEGINS_MS):
                break
            other_off, other = replay(at)
            if abs(other_off) < abs(off):
                self._at, off, best = at, other_off, other
        self.begin_ms = BEGINS_MS[self._at]
        return best.took_ns

    def _replay(
        self,
        begin: ShadowSetup,
        seen: Sequence[BypassedRequest],
        batch_stats: Mapping[str, TritonBatchStats],
        begin_ms: float,
    ) -> ShadowReplayResult:
        models = begin.batcher.get("models", {})
        options: dict[str, Any] = {
            **begin.batcher,
            "begin_ms": begin_ms,
            "models": {name: {**models.get(name, {}), "executed": each.before} for name, each in batch_stats.items()},
        }
        return replay_under_batcher(begin, self._plugins, seen, options, batch_stats)


class TunedBatcher:
    """Triton's batcher with the best queue delay and queue timeout per model that was found so far.

    Each report simulates the best setting and one other, in rotation, so its cost does not grow with the number of
    settings. At first the best setting is the models' own configuration.
    """

    def __init__(self, begin: ShadowSetup, plugins: Plugins) -> None:
        self._plugins = plugins
        slos_ms = {model.name: model.slo_ns / NS_PER_MS for model in begin.setup.models if model.slo_ns is not None}
        self._settings = tuned_settings(slos_ms)
        self._others = cycle(self._settings)
        self.setting = ""
        """Label of the best setting so far; empty: as the models are configured."""

    def took_ns(
        self,
        begin: ShadowSetup,
        seen: Sequence[BypassedRequest],
        batch_stats: Mapping[str, TritonBatchStats],
        own: tuple[float | None, list[int | None]],
        on_time: Callable[[Sequence[int | None]], int],
    ) -> list[int | None]:
        """Return the latency of each request in ns under the best setting; None if it had no response.

        `seen`: requests of the window. `batch_stats`: by model. `own`: wake-up time of an idle instance in
        ms, and the latencies under the models' own configuration. `on_time` counts the requests with such latencies
        that meet their SLOs. Raises PluginError.
        """
        begin_ms, best = own
        if self.setting:
            best = max(best, self._replay(begin, seen, batch_stats, begin_ms, self.setting), key=on_time)
            if best is own[1]:
                self.setting = ""
        other = next(self._others)
        if other != self.setting:
            tried = self._replay(begin, seen, batch_stats, begin_ms, other)
            if on_time(tried) > on_time(best):
                self.setting, best = other, tried
        return best

    def _replay(
        self,
        begin: ShadowSetup,
        seen: Sequence[BypassedRequest],
        batch_stats: Mapping[str, TritonBatchStats],
        begin_ms: float | None,
        setting: str,
    ) -> list[int | None]:
        own, tuned = begin.batcher.get("models", {}), self._settings[setting]["models"]
        models = {
            name: {**own.get(name, {}), **tuned.get(name, {}), "executed": each.before}
            for name, each in batch_stats.items()
        }
        options = {**begin.batcher, "begin_ms": begin_ms or BEGINS_MS[0], "models": models}
        return replay_under_batcher(begin, self._plugins, seen, options, batch_stats).took_ns


def _mean_log(sizes: Sequence[tuple[int, int]]) -> float:
    """Return the mean logarithm of the rows of batches, given the number of each: batches of one row weigh in it."""
    count = sum(count for _, count in sizes)
    return sum(count * math.log(rows) for rows, count in sizes) / count if count else 0.0
