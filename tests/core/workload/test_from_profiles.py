"""A scenario names the file that `tidegate profile` wrote, and its models take as long as that says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.schemas import ModelProfile, ProfilePoint, write_profile
from tidegate.sim.build import with_shapes
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, ScenarioError, layout_of, read_scenario

WORLD: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 1,
    "profiles": "measured/profiles.json",
    "workers": [{"count": 1, "gpu": "A100"}, {"count": 2, "gpu": "T4"}],
    "models": [{"name": "m", "slo_ms": 100}],
    "arrivals": {"rate_rps": 20},
}


def measure(folder: Path, kind: str, *medians_ms: float, model: str = "m", shape: str = "") -> None:
    """What batches of 1, 2, 4, ... rows took."""
    path = folder / "measured" / "profiles.json"
    path.parent.mkdir(exist_ok=True)
    points = [
        ProfilePoint(rows=2**power, median_ms=took_ms, p95_ms=2 * took_ms, samples=3)
        for power, took_ms in enumerate(medians_ms)
    ]
    write_profile(path, ModelProfile(model=model, device_class=kind, shape=shape, alpha_ms=1, beta_ms=1, points=points))


def read(folder: Path, **changes: Any) -> Scenario:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(WORLD | changes))
    return read_scenario(path)


def expected_ms(scenario: Scenario) -> dict[tuple[str, str], list[float]]:
    """Of every size, by kind and shape."""
    _, _, profiles, _ = layout_of(scenario).contract()
    return {
        (each.device_class, each.shape): [each.expected_ns(rows) / 1e6 for rows in each.every_size]
        for each in with_shapes(scenario, profiles, known_to_policy=True)
    }


def test_models_take_as_long_as_was_measured_on_their_kind_of_worker(tmp_path: Path) -> None:
    """The medians, up to the largest batch that was measured everywhere, in straight lines."""
    measure(tmp_path, "A100", 2.0, 3.0, 5.0, 9.0)
    measure(tmp_path, "T4", 10.0, 14.0, 22.0)
    scenario = read(tmp_path)
    assert expected_ms(scenario) == {("A100", ""): [2.0, 3.0, 4.0, 5.0], ("T4", ""): [10.0, 14.0, 18.0, 22.0]}
    assert scenario.profiles is None  # it is all in the models now, which can be read elsewhere
    given = scenario.model_dump(mode="json", exclude_defaults=True)
    assert Scenario.model_validate(given).models == scenario.models
    assert simulate(RunSpec(scenario, PolicyChoice(name="fifs"), seed=1)).total.attainment == 1


def test_what_the_scenario_says_itself_counts(tmp_path: Path) -> None:
    measure(tmp_path, "A100", 2.0, 3.0, 5.0, 9.0)
    measure(tmp_path, "T4", 10.0, 14.0, 22.0)
    own = {"name": "n", "profile": {"alpha_ms": 1, "beta_ms": 1, "max_batch": 4}}
    scenario = read(tmp_path, models=[{"name": "m", "max_batch": 8}, own])
    assert scenario.model("m").max_rows == 8
    assert scenario.model("m").profiles["T4"].points_ms == {1: 10.0, 2: 14.0, 4: 22.0, 8: 38.0}
    assert scenario.model("n").profile is not None


def test_what_was_measured_of_no_kind_holds_for_every_kind_of_which_nothing_else_was(tmp_path: Path) -> None:
    measure(tmp_path, "default", 4.0, 5.0)
    profile = read(tmp_path).model("m").profile
    assert profile is not None
    assert profile.points_ms == {1: 4.0, 2: 5.0}
    measure(tmp_path, "A100", 2.0, 3.0)
    assert expected_ms(read(tmp_path)) == {("A100", ""): [2.0, 3.0], ("T4", ""): [4.0, 5.0]}


def test_shapes_take_as_long_as_was_measured_of_them(tmp_path: Path) -> None:
    """Of no shape nothing was measured: that is as slow as the slowest."""
    measure(tmp_path, "default", 4.0, 6.0, shape="x:320")
    measure(tmp_path, "default", 8.0, 9.0, shape="x:640")
    shapes = [{"shape": "x:320"}, {"shape": "x:640", "latency_factor": 3}, {"shape": "x:960"}]
    scenario = read(tmp_path, workers=[{"count": 1, "gpu": "T4"}], models=[{"name": "m", "shapes": shapes}])
    assert expected_ms(scenario) == {
        ("T4", ""): [8.0, 9.0],
        ("T4", "x:320"): [4.0, 6.0],
        ("T4", "x:640"): [24.0, 27.0],
        ("T4", "x:960"): [8.0, 9.0],
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": [{"name": "mm"}]}, "has nothing of 'mm'; it has: m. Measure it with `tidegate profile mm`, or say"),
        (
            {"workers": [{"count": 1, "gpu": "A10"}]},
            "nothing of 'm' on 'A10'; did you mean 'A100'? It has: A100, T4. Measure it with",
        ),
        ({"profiles": "none.json"}, "none.json: No such file or directory; `tidegate profile` writes such a file"),
        ({"profiles": "scenario.yaml"}, "`tidegate profile` writes such a file"),
        ({"layout": "layout.json"}, "profiles: a layout has those of its models: leave out one of the two"),
        ({"models": [{"name": "m", "max_batch": 0}]}, "max_batch"),
        ({"workers": [{"count": 0, "gpu": "T4"}]}, "workers.0.count"),
        ({"models": ["m"]}, "models.0"),
    ],
)
def test_what_is_lacking_is_said_with_its_remedy(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    measure(tmp_path, "A100", 2.0)
    measure(tmp_path, "T4", 2.0)
    with pytest.raises(ScenarioError) as raised:
        read(tmp_path, **changes)
    assert said in str(raised.value)


def test_workers_that_do_not_host_it_need_no_profile_of_it(tmp_path: Path) -> None:
    measure(tmp_path, "A100", 2.0)
    own = {"name": "n", "profile": {"alpha_ms": 1, "beta_ms": 1, "max_batch": 4}}
    workers = [{"count": 1, "gpu": "A100"}, {"count": 1, "gpu": "T4", "hosts": ["n"]}]
    assert [*read(tmp_path, workers=workers, models=[{"name": "m"}, own]).model("m").profiles] == ["A100"]
