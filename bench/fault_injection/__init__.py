"""Hazards for a Tidegate, one per module: what is done to it, and the outcome.

`hazard` defines a hazard, `rig` the servers and clients, `models` the models of its Tritons; `python -m bench.faults`
runs all hazards.
"""

from importlib import import_module

from bench.fault_injection.hazard import Hazard

NAMES = (
    "merge_keys", "hung_triton", "slow_first_runs", "lone_requests", "without_slo", "rolling_tritons",
    "replaced_tidegate", "cancellations", "drain_budget", "kills",
)  # fmt: skip
"""Modules of this package, the most dangerous hazard first."""


def hazards() -> list[Hazard]:
    """Return all hazards."""
    found: list[Hazard] = [import_module(f"{__name__}.{name}").HAZARD for name in NAMES]
    return found
