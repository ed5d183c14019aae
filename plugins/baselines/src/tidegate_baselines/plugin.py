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
        PolicySpec("fifs", "First idle, first served: eager batches, no deadlines", Fifs, ({}, {"max_rows": 1})),
        PolicySpec(
            "eager",
            "An idle worker takes at once what can still be on time",
            Eager,
            ({}, {"batch_formation": "skip_head"}),
        ),
        PolicySpec(
            "timeout",
            "A batch starts a constant time after its oldest request came",
            Timeout,
            tuple({"timeout_ms": 0.0, "slo_share": share} for share in (0.1, 0.2, 0.35)),
        ),
        PolicySpec("clockwork", "A candidate per batch size; the most urgent runs first", Clockwork),
        PolicySpec("clipper", "A batch size found by trial: more while in time, less when not", Clipper),
        PolicySpec("nexus", "A static plan, round robin, and a queue per worker", Nexus),
        PolicySpec("shepherd", "The largest batch first; small ones that run make way for it", Shepherd),
        PolicySpec("triton", "Triton's own dynamic batcher, to check the simulator against", Triton),
    ]
