"""Triton's own batcher, simulated: what is learned of it is how long an idle instance takes to begin.

Its thread has to be woken, and until then requests join its batch, so that in bursts fewer batches are of one row. How
long that is depends on the machine; what it is, is told by batches that are as large as those that the Tritons have
counted. The attainment, by which the simulator is checked, has no say in it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.host import Plugins
from tidegate.sim.shadow_messages import Begin, Seen
from tidegate.sim.shadow_replay import Replayed, replay_under_batcher
from tidegate.sim.shadow_told import Told

BEGINS_MS: Final = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
"""What an idle instance may take to begin: from the first on, so that nothing is assumed where batches do not tell."""
NEAR: Final = 0.03
"""The mean size of a thousand batches differs by about as much, as a share, by chance: nearer is not asked for."""
TRIES: Final = 2
"""For each report as many others are tried at most; each is a simulation."""


class OwnBatcher:
    """Goes on with each report from what it has learned."""

    def __init__(self, begin: Begin, plugins: Plugins) -> None:
        self._begin = begin
        self._plugins = plugins
        self._at = 0
        self.begin_ms: float | None = None
        """How long an idle instance takes to begin; None where the Tritons did not tell of any batch."""

    def took_ns(self, seen: Sequence[Seen], told: Mapping[str, Told], between_ns: tuple[int, int]) -> list[int | None]:
        """What each request took. `told`: of the batches that ended between these instants. Raises PluginError."""
        counted = [each for of_model in told.values() for each in of_model.sizes]
        if not counted:
            self.begin_ms = None
            return self._replay(seen, told, BEGINS_MS[0]).took_ns

        def replay(at: int) -> tuple[float, Replayed]:
            replayed = self._replay(seen, told, BEGINS_MS[at])
            simulated = [
                (rows, 1)
                for ended_ns, model, rows in replayed.batches
                if told[model].sizes and between_ns[0] <= ended_ns < between_ns[1]
            ]
            return _mean_log(simulated) - _mean_log(counted), replayed

        off, best = replay(self._at)
        step, was_at = (1 if off < 0 else -1), self._at
        for at in range(was_at + step, was_at + step * (TRIES + 1), step):
            if abs(off) <= NEAR or not 0 <= at < len(BEGINS_MS):
                break
            other_off, other = replay(at)
            if abs(other_off) < abs(off):
                self._at, off, best = at, other_off, other
        self.begin_ms = BEGINS_MS[self._at]
        return best.took_ns

    def _replay(self, seen: Sequence[Seen], told: Mapping[str, Told], begin_ms: float) -> Replayed:
        models = self._begin.batcher.get("models", {})
        options: dict[str, Any] = {
            **self._begin.batcher,
            "begin_ms": begin_ms,
            "models": {name: {**models.get(name, {}), "executed": each.before} for name, each in told.items()},
        }
        return replay_under_batcher(self._begin, self._plugins, seen, options, told)


def _mean_log(sizes: Sequence[tuple[int, int]]) -> float:
    """The mean logarithm of the rows of batches, of which there are so many each: batches of one row weigh in it."""
    count = sum(count for _, count in sizes)
    return sum(count * math.log(rows) for rows, count in sizes) / count if count else 0.0
