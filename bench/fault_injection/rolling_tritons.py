"""Hazard: Tritons restarted one after the other with another `max_batch_size`."""

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.rig import Rig
from bench.rolling_update import rolling_update


def run(rig: Rig) -> Result:
    """Restart the Tritons by SIGTERM; `python -m bench.rolling_update --killed` kills them instead."""
    outcomes, took_s = rolling_update(4000 if rig.quick else 10_000, killed=False)
    lost = outcomes["sent"] - outcomes["answered"]
    return Result(f"{lost} of {outcomes['sent']} not answered; it took {took_s:.0f} s", not lost, dict(outcomes))


HAZARD = Hazard(
    "rolling_tritons",
    "a rolling update of the Tritons under load",
    "every request answered",
    run,
)
