"""The scenarios of the repository: what Symphony carries at their rates, and what knows no deadlines does not."""

from pathlib import Path

import pytest

from tests.examples import few
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, read_scenario

SCENARIOS = Path(__file__).parents[3] / "scenarios"
OTHERS = ("pooled_", "composed_", "deferred_", "layered")
"""Split models, and models whose times depend on the data."""
OF_WHOLE_MODELS = sorted(
    (path for path in SCENARIOS.glob("*.yaml") if not path.stem.startswith(OTHERS)),
    key=lambda path: (path.stem not in ("mixture_strong", "resnet50"), path.stem),
)


@pytest.mark.parametrize(
    "path",
    few(OF_WHOLE_MODELS, 2, ids=[path.stem for path in OF_WHOLE_MODELS]),
)
def test_symphony_carries_what_fifs_does_not(path: Path) -> None:
    scenario = read_scenario(path, {"warmup_s": 0.5, "duration_s": 1})
    symphony, fifs = (
        simulate(RunSpec(scenario, PolicyChoice(name=name), scenario.seed)).total for name in ("symphony", "fifs")
    )
    assert symphony.bad_rate <= 0.01
    assert fifs.worst_bad_rate > 0.01
    assert symphony.accepted == fifs.accepted


@pytest.mark.slow
def test_symphony_that_consolidates_leaves_workers_idle_in_proportion_to_the_load_that_is_missing() -> None:
    """Section 3.5: (p-o)/p of their time, at an offered load o below the peak p; eager batching leaves none."""
    peak_rps = 5359
    for share in (0.25, 0.5):
        changes = {"warmup_s": 1, "duration_s": 3, "arrivals.rate_rps": share * peak_rps}
        scenario = read_scenario(SCENARIOS / "resnet50.yaml", changes)
        choices = PolicyChoice(name="symphony", options={"pack_workers": True}), PolicyChoice(name="eager")
        symphony, eager = (simulate(RunSpec(scenario, choice, 1)).total for choice in choices)
        assert symphony.busy_share == pytest.approx(share, abs=0.05)
        assert symphony.touched_workers in range(2, 8)
        assert eager.touched_workers == 8
        assert eager.busy_share > 0.8


def test_pools_of_partitions_carry_what_whole_models_on_the_same_gpus_do_not() -> None:
    attainment = {}
    for name, policy in (
        ("pooled_pipeline", "ppipe"),
        ("pooled_pipeline_np", "ppipe"),
        ("pooled_pipeline_whole", "symphony"),
    ):
        scenario = read_scenario(SCENARIOS / f"{name}.yaml", {"warmup_s": 1, "duration_s": 5})
        attainment[name] = simulate(RunSpec(scenario, PolicyChoice(name=policy), scenario.seed)).total.attainment
    assert attainment["pooled_pipeline"] > 0.99
    assert max(attainment["pooled_pipeline_np"], attainment["pooled_pipeline_whole"]) < 0.93
