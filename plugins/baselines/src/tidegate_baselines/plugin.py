"""Registration of the baseline policies."""

from tidegate.api import PolicySpec, hookimpl
from tidegate_baselines.clipper import Clipper
from tidegate_baselines.clockwork import Clockwork
from tidegate_baselines.eager import Eager
from tidegate_baselines.fifs import Fifs
from tidegate_baselines.nexus import Nexus
from tidegate_baselines.shepherd import Shepherd
from tidegate_baselines.timeout import Timeout
from tidegate_baselines.triton import Triton


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return every baseline policy."""
    return [
        PolicySpec(
            "fifs", "First come, first served on the first idle worker; ignores deadlines", Fifs, ({}, {"max_rows": 1})
        ),
        PolicySpec(
            "eager",
            "Dispatches to idle workers at once; drops requests that would miss their deadline",
            Eager,
            ({}, {"batch_formation": "skip_head"}),
        ),
        PolicySpec(
            "timeout",
            "Starts a batch a constant time after its oldest request arrived",
            Timeout,
            tuple({"timeout_ms": 0.0, "slo_share": share} for share in (0.1, 0.2, 0.35)),
        ),
        PolicySpec("clockwork", "Plans one candidate per batch size and runs the most urgent first", Clockwork),
        PolicySpec("clipper", "Adapts the batch size: larger while deadlines are met, smaller after a miss", Clipper),
        PolicySpec(
            "nexus", "Assigns models to workers by a static plan, with round robin and a queue per worker", Nexus
        ),
        PolicySpec("shepherd", "Runs the largest batch first, and preempts smaller running ones for it", Shepherd),
        PolicySpec("triton", "Reproduces Triton's own dynamic batcher, as a baseline for simulations", Triton),
    ]
