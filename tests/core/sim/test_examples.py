"""The scenarios of the repository: what Symphony carries at their rates, and what knows no deadlines does not."""

from pathlib import Path

import pytest

from tidegate.sim.run import Run, simulate
from tidegate.workload import PolicyChoice, read_scenario

SCENARIOS = Path(__file__).parents[3] / "scenarios"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_symphony_carries_what_fifs_does_not(path: Path) -> None:
    scenario = read_scenario(path, {"warmup_s": 1, "duration_s": 1 if "zoo" in path.stem else 4})
    symphony, fifs = (
        simulate(Run(scenario, PolicyChoice(name=name), scenario.seed)).total for name in ("symphony", "fifs")
    )
    assert symphony.bad_rate <= 0.01
    assert fifs.worst_bad_rate > 0.01
    assert symphony.accepted == fifs.accepted
