"""Adaptive deferral, simulated: bursts lose nobody who waits; to pack_workers uses workers in proportion to the
load."""

import pytest

from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario

ADAPTIVE, CONSOLIDATED, FRONTRUN, EAGER = (
    PolicyChoice(name="symphony"),
    PolicyChoice(name="symphony", label="consolidated", options={"pack_workers": True}),
    PolicyChoice(name="symphony", label="frontrun", options={"deferral": "frontrun"}),
    PolicyChoice(name="eager"),
)


def _scenario(models: int, workers: int, **arrivals: object) -> Scenario:
    profile = {"alpha_ms": 1.061, "beta_ms": 10.312, "max_batch": 64}
    return Scenario.model_validate(
        {
            "warmup_s": 1,
            "duration_s": 4,
            "workers": [{"count": workers, "gpu": "1080Ti"}],
            "models": [{"name": f"m{number}", "slo_ms": 50, "profile": profile} for number in range(models)],
            "arrivals": arrivals,
            "policies": [{"name": "symphony"}],
        }
    )


@pytest.mark.slow
def test_with_many_models_workers_are_idle_in_proportion_to_the_load_that_is_missing() -> None:
    """Section 3.5. Eager batching keeps them all busy with small batches."""
    half = _scenario(12, 24, process="poisson", rate_rps=3000)
    contenders = CONSOLIDATED, FRONTRUN, EAGER
    consolidated, frontrun, eager = (simulate(RunSpec(half, choice, 1)).total for choice in contenders)
    assert consolidated.busy_share == pytest.approx(frontrun.busy_share, abs=0.05)
    assert consolidated.busy_share < eager.busy_share - 0.2
    assert consolidated.worst_bad_rate <= 0.01


def test_what_waits_alone_is_not_lost_to_the_burst_of_another_model() -> None:
    bursts = _scenario(8, 8, process="gamma", shape=0.1, rate_rps=900)
    adaptive, eager = (simulate(RunSpec(bursts, choice, 1)).total for choice in (ADAPTIVE, EAGER))
    assert adaptive.bad_rate <= eager.bad_rate + 0.002
