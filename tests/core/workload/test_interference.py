"""A scenario whose workers slow each other down as an interference file says."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.schemas import InterferenceModel, Mps
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import ScenarioError, layout_of, read_scenario

MODEL: dict[str, Any] = {"gpu_ms": {"rows": [1], "percents": [50], "taken_ms": [[10]]}}
FILE: dict[str, Any] = {
    "gpu": "V100",
    "models": {"a": {**MODEL, "sensitivity": {"neighbor": 0.5}}, "b": {**MODEL, "sensitivity": {"neighbor": 0.1}}},
}
SHARED: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 2,
    "workers": [
        {"count": 1, "gpu": "V100", "device": 0, "percent": 40, "hosts": ["a"]},
        {"count": 1, "gpu": "V100", "device": 0, "percent": 60, "hosts": ["b"]},
    ],
    "models": [{"name": name, "profile": {"alpha_ms": 0, "beta_ms": 10, "max_batch": 1}} for name in "ab"],
    "arrivals": {"process": "uniform", "rate_rps": 400},
    "policies": [{"name": "fifs"}],
    "simulation": {"learn": False, "interference": "v100.json"},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the scenario; the interference file is beside it."""
    (tmp_path / "v100.json").write_text(json.dumps(FILE))
    (tmp_path / "shared.yaml").write_text(json.dumps(SHARED))
    return tmp_path / "shared.yaml"


def test_each_is_slowed_as_the_file_beside_it_says(path: Path) -> None:
    scenario = read_scenario(path)
    assert scenario.simulation.interference == InterferenceModel.model_validate(FILE)
    assert [worker.slice for worker in layout_of(scenario).workers] == [Mps(40), Mps(60)]
    stages = simulate(RunSpec(scenario, scenario.policies[0], 1, gantt_s=1)).gantt
    for name, slowed_ms in (("a", 15), ("b", 11)):
        taken = sorted(round(1000 * (stage.end_s - stage.start_s), 3) for stage in stages if stage.model == name)
        assert taken[len(taken) // 2] == slowed_ms


def test_it_may_stand_in_the_scenario_itself(path: Path) -> None:
    inside = read_scenario(path, {"simulation.interference": FILE})
    assert inside.simulation == read_scenario(path).simulation


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"simulation.interference": "none.json"}, "none.json: No such file"),
        ({"simulation.interference": 0.5}, "must be a factor, 1 to 1000, or the path"),
        ({"simulation.interference": True}, "must be a factor, 1 to 1000, or the path"),
        ({"simulation.interference": {**FILE, "gpu": 3}}, "gpu: "),
        ({"workers.*.gpu": "A100"}, "measured on 'V100', and workers share a 'A100'"),
        ({"simulation.interference": {**FILE, "models": {"a": MODEL}}}, "knows nothing of 'b', which shares a GPU"),
        ({"workers.0.percent": 0}, "percent"),
    ],
)
def test_what_it_cannot_say_is_named(path: Path, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        read_scenario(path, changes)
    assert what in str(refused.value)
    assert "workers.0.percent" in changes or "simulation.interference" in str(refused.value)


def test_who_shares_nothing_may_be_unknown_to_it(path: Path) -> None:
    """Nobody is slowed on a GPU of another product that has one worker."""
    apart = [{**worker, "device": number, "gpu": "A100"} for number, worker in enumerate(SHARED["workers"])]
    scenario = read_scenario(path, {"workers": apart})
    stages = simulate(RunSpec(scenario, scenario.policies[0], 1, gantt_s=1)).gantt
    assert {round(1000 * (stage.end_s - stage.start_s), 3) for stage in stages} == {10}
