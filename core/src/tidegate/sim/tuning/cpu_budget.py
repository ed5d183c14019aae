"""Budget of CPU time: a fraction of one core on average, saved up while nothing is simulated."""

from typing import Final

BURST_NS: Final = 2_000_000_000
"""Maximum CPU time in ns that is saved up."""


class CpuBudget:
    """Budget of CPU time for comparisons: a fraction of one core, averaged over time. The caller passes the time."""

    def __init__(self, fraction: float, now_ns: int) -> None:
        """Create a budget that has nothing to spend yet at `now_ns`. `fraction`: part of one core, 0 to 1."""
        self._fraction = fraction
        self._at_ns = now_ns
        self._saved_ns = 0.0

    def spend(self, now_ns: int, cpu_ns: int) -> int:
        """Record that `cpu_ns` of CPU time were spent; return for how many ns no more may be spent."""
        self._saved_ns = min(BURST_NS, self._saved_ns + self._fraction * (now_ns - self._at_ns)) - cpu_ns
        self._at_ns = now_ns
        return max(0, round(-self._saved_ns / self._fraction))
