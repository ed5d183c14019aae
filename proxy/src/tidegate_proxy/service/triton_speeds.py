"""How fast Tritons answer bypassed inferences, to route them by expected work rather than by number."""

from collections import defaultdict
from collections.abc import Hashable
from typing import Final

WINDOW_SAMPLES: Final = 32
"""Durations of which the shortest counts: it has the least waiting in it, whatever the load."""
MIN_SAMPLES: Final = 8
"""Durations of a model at a Triton from which on they are compared with those at others."""
MIN_RATIO: Final = 1.5
"""Ratio of two durations below which Tritons count as equally fast: requests differ, and clocks jitter."""


class _ShortestDuration:
    """Shortest duration of the present and the previous window."""

    __slots__ = ("before_ns", "now_ns", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.now_ns = self.before_ns = 0

    def add(self, duration_ns: int) -> None:
        if self.samples and self.samples % WINDOW_SAMPLES == 0:
            self.before_ns, self.now_ns = self.now_ns, duration_ns
        self.samples += 1
        self.now_ns = min(self.now_ns, duration_ns) if self.now_ns else duration_ns

    @property
    def shortest_ns(self) -> int:
        return min(self.now_ns, self.before_ns) if self.before_ns else self.now_ns


class TritonSpeeds:
    """Shortest recent duration of each model's bypassed inferences, by Triton."""

    def __init__(self) -> None:
        self._of_model: dict[str, dict[Hashable, _ShortestDuration]] = defaultdict(dict)

    def answered(self, triton: Hashable, model: str, duration_ns: int) -> None:
        """Record that a Triton answered an inference of a model, one that it has, `duration_ns` after it was sent."""
        of_model = self._of_model[model]
        if triton not in of_model:
            of_model[triton] = _ShortestDuration()
        of_model[triton].add(duration_ns)

    def slowdowns(self, model: str) -> dict[Hashable, float]:
        """Return how many times as long Tritons take for a model as the fastest one; without those about as fast."""
        of_model = self._of_model.get(model)
        if not of_model or len(of_model) < 2:
            return {}
        known = {key: each.shortest_ns for key, each in of_model.items() if each.samples >= MIN_SAMPLES}
        fastest_ns = max(1, min(known.values(), default=1))
        return {key: each / fastest_ns for key, each in known.items() if each >= MIN_RATIO * fastest_ns}
