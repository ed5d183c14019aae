"""Process that compares policies on recorded requests, at the lowest priority and within a CPU budget.

Run as `python -m tidegate_proxy.app.tuning.tuning_process`; `simulation_process` has the messages.
"""

import sys
import time
from typing import Final

import msgspec
from msgspec.structs import replace

from tidegate.host import Plugins
from tidegate.sim.background_priority import step_aside
from tidegate.sim.tuning.policy_comparison import Comparison, ComparisonJob, compare
from tidegate.sim.tuning.tuner import CpuBudget
from tidegate_proxy.app import simulation_process

LOOK_EVERY: Final = 100
"""Number of simulated events between two reads of the clock."""
MAX_CANDIDATE_CPU_S: Final = 5.0
"""CPU time of one simulated run; a policy that takes longer is no candidate."""


class TuningAnswer(msgspec.Struct, frozen=True):
    """Result of a comparison, with its cost."""

    comparison: Comparison
    cpu_s: float
    """CPU time of the process since its previous answer, or since its start."""


class _Throttle:
    """Sleeps now and then, so that the process stays within its budget."""

    def __init__(self) -> None:
        self._budget = CpuBudget(1.0, time.monotonic_ns())
        self._fraction = 1.0
        self._events = 0
        self._seen_ns = time.process_time_ns()
        """CPU time of the process at the latest look."""
        self._until_ns = 0
        """CPU time of the process at which the present run has taken too long."""

    def begin(self, fraction: float) -> None:
        """Set the budget for the next comparison."""
        if fraction != self._fraction:
            self._fraction, self._budget = fraction, CpuBudget(fraction, time.monotonic_ns())
        self.next_run()

    def next_run(self) -> None:
        """Begin the simulation of a candidate."""
        self._until_ns = time.process_time_ns() + round(MAX_CANDIDATE_CPU_S * 1e9)

    def enough(self) -> bool:
        """Sleep as long as the budget says; return whether the present run has taken too long."""
        self._events += 1
        if self._events % LOOK_EVERY:
            return self._seen_ns > self._until_ns
        cpu_ns = time.process_time_ns()
        spent_ns, self._seen_ns = cpu_ns - self._seen_ns, cpu_ns
        time.sleep(self._budget.spend(time.monotonic_ns(), spent_ns) / 1e9)
        return cpu_ns > self._until_ns


def main() -> None:
    """Read each job, compare, write the result."""
    step_aside()
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # what a policy prints is no answer
    lines = iter(sys.stdin.buffer)
    plugins, throttle, reported_s = Plugins.installed(), _Throttle(), 0.0
    for line in lines:
        job = msgspec.json.decode(line, type=ComparisonJob)
        job = replace(job, question=replace(job.question, requests=simulation_process.requests_of(lines)))
        throttle.begin(job.cpu_fraction)
        comparison = compare(job, plugins, throttle.enough, throttle.next_run)
        cpu_s = time.process_time()
        simulation_process.answer(out, TuningAnswer(comparison, cpu_s - reported_s))
        reported_s = cpu_s


if __name__ == "__main__":
    main()
