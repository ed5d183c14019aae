"""Scenario files: what they may leave out, and errors that name file, field and remedy."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.sim.build import setup_of
from tidegate.workload import Scenario, ScenarioError, read_scenario
from tidegate.workload.distributions import Constant

SCENARIOS = Path(__file__).parents[3] / "scenarios"
SMALL: dict[str, Any] = {
    "duration_s": 5,
    "workers": [{"count": 2, "gpu": "A100"}],
    "models": [{"name": "resnet", "slo_ms": 25, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 16}}],
    "arrivals": {"rate_rps": 100},
}


def read(tmp_path: Path, changes: dict[str, Any] | None = None) -> Scenario:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return read_scenario(path, changes)


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_reads(path: Path) -> None:
    scenario = read_scenario(path)
    assert scenario.name == path.stem
    assert scenario.policies


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    scenario = read(tmp_path)
    assert (scenario.version, scenario.name, scenario.seed, scenario.warmup_s) == (1, "small", 0, 2.0)
    model = scenario.model("resnet")
    assert (model.max_rows, model.rows, model.weight) == (16, Constant(value=1), 1.0)
    assert scenario.weights() == [1.0]


def test_a_read_scenario_needs_its_files_no_more(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("rows,latency_ms\n1,6\n16,21\n")
    (tmp_path / "zoo.csv").write_text("name,alpha_ms,beta_ms,slo_ms\nbert,2,1,60\nvgg,1,1,\n")
    changes = {
        "models.0.profile": {"csv": "points.csv", "max_batch": 16},
        "models_from": {"csv": "zoo.csv", "max_batch": 4},
    }
    scenario = read(tmp_path, changes)
    for path in tmp_path.iterdir():
        path.unlink()
    copy = pickle.loads(pickle.dumps(scenario))
    assert copy == scenario
    assert copy.folder == tmp_path
    assert [model.name for model in copy.models] == ["resnet", "bert", "vgg"]
    assert [model.slo_ms for model in copy.models] == [25, 60, None]
    built = copy.models[0].profile.build("resnet", "A100", 16)
    assert built.upper_ns(8) == 13_000_000
    assert Scenario.model_validate(copy.model_dump(mode="json")).models == copy.models


def test_zipf_gives_the_first_model_the_most(tmp_path: Path) -> None:
    models = [{**SMALL["models"][0], "name": f"m{rank}", "weight": 2.0} for rank in range(3)]
    scenario = read(tmp_path, {"models": models, "popularity": {"law": "zipf", "exponent": 1}})
    assert scenario.weights() == [2.0, 1.0, pytest.approx(2 / 3)]
    assert read(tmp_path, {"models": models, "popularity": "equal"}).weights() == [2.0] * 3


def test_profiles_may_differ_by_kind_of_gpu(tmp_path: Path) -> None:
    line = {"alpha_ms": 1, "beta_ms": 5, "max_batch": 16}
    model = {"name": "resnet", "profiles": {"A100": line, "V100": {**line, "alpha_ms": 2}}}
    pools = [{"count": 1, "gpu": "A100"}, {"count": 1, "gpu": "V100"}]
    scenario = read(tmp_path, {"models": [model], "workers": pools})
    slow, fast = (scenario.partitions["resnet"][0].profile_on(gpu) for gpu in ("V100", "A100"))
    assert slow is not None
    assert fast is not None
    assert (slow.alpha_ms, fast.alpha_ms) == (2, 1)


def test_a_star_changes_every_entry(tmp_path: Path) -> None:
    models = [{**SMALL["models"][0], "name": name} for name in "ab"]
    scenario = read(tmp_path, {"models": models, "models.*.slo_ms": 40, "simulation.jitter.cv": 0.1})
    assert [model.slo_ms for model in scenario.models] == [40, 40]
    assert scenario.simulation.jitter is not None


MODEL = SMALL["models"][0]


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ({"version": 2}, "version", "must be 1, not 2"),
        ({"duration": 5}, "duration", r"there is no such field; did you mean duration_s\?"),
        ({"duration_s": 0}, "duration_s", "must be more than 0, not 0"),
        ({"workers": []}, "workers", "none is listed"),
        ({"workers.0.per_node": 3, "workers.0.per_gpu": 2}, r"workers\.0", "give a multiple of per_gpu"),
        ({"workers.0.per_node": 2, "workers.0.device": 0}, r"workers\.0", "leave out one of the two"),
        ({"workers": [{"count": 1, "gpu": name, "device": 0} for name in "ab"]}, "workers",
         "device 0 of 'node0' is 'a' in one entry and 'b' in another"),
        ({"workers.0.hosts": ["bert"]}, r"workers\.0\.hosts", "'bert' is no model"),
        ({"workers.0.network": {"control_ms": -1}}, r"workers\.0\.network\.control_ms", "must be at least 0, not -1"),
        ({"workers.0.network": {"delay_ms": 1}}, r"workers\.0\.network\.delay_ms", "there is no such field"),
        ({"models": [MODEL, MODEL]}, "models", "'resnet' is listed twice"),
        ({"models": []}, "models", "name a table with models_from"),
        ({"models": [MODEL, {**MODEL, "name": "b"}], "workers.0.hosts": ["b"]}, "workers", "none hosts 'resnet'"),
        ({"models.0.weight": 0}, "models", "every weight is zero"),
        ({"models.0.profile": {"max_batch": 4}}, r"models\.0\.profile", "exactly one of the three"),
        ({"models.0.profile.beta_ms": None}, r"models\.0\.profile", "exactly one of the three"),
        ({"models.0.profile.csv": "x.csv"}, r"models\.0\.profile", r"x\.csv: No such file"),
        ({"models.0.profile": None}, r"models\.0", "give profile"),
        ({"models.0.profile": None, "models.0.max_batch": 4}, r"models\.0", "give profile"),
        ({"models.0.profile.max_batch": None}, r"models\.0", "needs one max_batch"),
        ({"models.0.max_batch": 8}, r"models\.0", r"needs one max_batch for all its profiles, has \[8, 16\]"),
        ({"models.0.rows": 17}, r"models\.0", "a request has 1 to max_batch = 16 rows"),
        ({"models.0.rows": 0}, r"models\.0", "a request has 1 to max_batch"),
        ({"models.0.apps": [{"name": "a", "rows": 99}]}, r"models\.0", r"apps\.a\.rows"),
        ({"models.0.apps": [{"name": "a"}, {"name": "a"}]}, r"models\.0", "two have one name"),
        ({"models.0.apps": [{"name": "a", "known_to_policy": True}]}, "models", "combine: padded in"),
        ({"models_from": {"csv": "zoo.csv", "max_batch": 4}}, r"\S*/zoo\.csv", "No such file"),
        ({"models_from": {"csv": "zoo.csv", "max_batsh": 4}}, r"models_from\.max_batsh", "did you mean max_batch"),
        ({"models_from": 3}, "models_from", "must be fields with values, such as csv: ..., not 3"),
        ({"arrivals.process": "weibull"}, "arrivals", "'poisson'"),
        ({"arrivals.process": "gamma"}, "arrivals", "a gamma process needs one"),
        ({"arrivals.shape": 2}, "arrivals", "the others have none"),
        ({"arrivals.rate_rps": [{"from_s": 1, "rate_rps": 5}]}, "arrivals", "must begin with from_s 0"),
        ({"arrivals.rate_rps": [{"from_s": 0, "rate_rps": 0}]}, "arrivals", "needs a positive rate"),
        ({"arrivals": {"process": "trace"}}, r"arrivals\.file", "must be given"),
        ({"policies": [{"name": "fifs"}, {"name": "fifs"}]}, "policies", "give one of them a label"),
        ({"simulation.service.bert": {}}, r"simulation\.service", "'bert'"),
        ({"simulation.events": [{"at_s": 1, "lost": 2}]}, r"simulation\.events\.0", "workers: 0 to 1"),
        ({"simulation.events": [{"at_s": 1, "lost": "node7"}]}, r"simulation\.events\.0", "nodes: node0"),
        ({"simulation.events": [{"at_s": 1}]}, r"simulation\.events\.0", "give lost or joined"),
    ],
)  # fmt: skip
def test_errors_name_file_field_and_remedy(tmp_path: Path, changes: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(ScenarioError, match=rf"small\.yaml: {field}: .*{remedy}"):
        read(tmp_path, changes)


def test_more_than_one_thing_that_is_wrong_has_a_line_each(tmp_path: Path) -> None:
    wrong = (
        r"small\.yaml:\n  duration_s: must be more than 0, not 0\n  models\.0\.slo_ms: must be a number, not 'quick'$"
    )
    with pytest.raises(ScenarioError, match=wrong):
        read(tmp_path, {"duration_s": 0, "models.0.slo_ms": "quick"})


def test_a_model_needs_a_profile_for_every_gpu_it_runs_on(tmp_path: Path) -> None:
    changes = {"models.0.profile": None, "models.0.profiles": {"V100": MODEL["profile"]}}
    with pytest.raises(ScenarioError, match=r"profiles: 'resnet' has none for 'A100' \(workers\.0\)"):
        read(tmp_path, changes)


def test_and_its_shapes_where_they_have_profiles_by_kind(tmp_path: Path) -> None:
    shape = {"shape": "x:640", "profiles": {"V100": {"alpha_ms": 1, "beta_ms": 5}}}
    with pytest.raises(
        ScenarioError, match=r"shapes: profiles: 'x:640' of 'resnet' has none for 'A100' \(workers\.0\)"
    ):
        read(tmp_path, {"models.0.shapes": [shape]})


def test_a_part_of_a_gpu_has_the_profile_of_a_shape_that_the_whole_one_has(tmp_path: Path) -> None:
    shape = {"shape": "x:640", "profiles": {"A100": {"alpha_ms": 20, "beta_ms": 80}}}
    scenario = read(tmp_path, {"models.0.shapes": [shape], "workers": [{"count": 2, "gpu": "A100", "per_gpu": 2}]})
    slow = {profile.shape: profile for profile in setup_of(scenario, 0).profiles}["x:640"]
    assert (slow.device_class, slow.expected_ns(1)) == ("A100/mps-50", 100_000_000)


@pytest.mark.parametrize("field", ["models.7.slo_ms", "duration_s.x", "models.first.slo_ms"])
def test_a_path_that_leads_nowhere_is_named(tmp_path: Path, field: str) -> None:
    with pytest.raises(ScenarioError, match=f"cannot set '{field}': "):
        read(tmp_path, {field: 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "it is no YAML"),
        (b"\xff\xfe\x00", "it is no text"),
        (b"- 1", "must be fields with values, such as duration_s: ..., not a list"),
        (None, "No such file"),
    ],
)
def test_what_is_no_scenario_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "odd.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ScenarioError, match=rf"odd\.yaml:(?s:.*){message}"):
        read_scenario(path)


NUMBERS = [
    "models.0.weight",
    "models.0.time_ms",
    "models.0.rows",
    "popularity.exponent",
    "arrivals.rate_rps",
    "simulation.events.0.at_s",
    "simulation.stalls.factor",
    "simulation.jitter.cv",
    "models.0.shapes.0.weight",
    "models.0.apps.0.weight",
]


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -1])
@pytest.mark.parametrize("field", NUMBERS)
def test_numbers_are_finite_and_not_negative(tmp_path: Path, field: str, number: float) -> None:
    changes: dict[str, Any] = {
        "popularity": {"law": "zipf"},
        "models.0.shapes": [{"shape": "x:3"}],
        "models.0.apps": [{"name": "a"}],
        "simulation": {"events": [{"at_s": 1, "lost": 0}], "stalls": {"probability": 0.1}, "jitter": {"cv": 1}},
    }
    read(tmp_path, changes)
    with pytest.raises(ScenarioError, match=field.replace(".", r"\.")):
        read(tmp_path, changes | {field: number})
