"""What may happen to a Tidegate, one hazard a file: what is done, and how it went in this run.

`hazard` says what a hazard is, `rig` where it takes place, `models` what its Tritons serve; `python -m bench.faults`
runs them all.
"""

from importlib import import_module

from bench.fault_injection.hazard import Hazard

NAMES = (
    "foreign_memory", "merge_keys", "hanging_policy", "hung_triton", "failing_backend", "greedy_neighbor",
    "slow_first_runs", "lone_requests", "poisoned_batches", "without_slo", "rolling_tritons", "replaced_tidegate",
    "large_json", "cancellations", "drain_budget", "kills",
)  # fmt: skip
"""Modules of this package, the most dangerous first."""


def hazards() -> list[Hazard]:
    """All of them."""
    found: list[Hazard] = [import_module(f"{__name__}.{name}").HAZARD for name in NAMES]
    return found
