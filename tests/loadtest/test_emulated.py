"""What a scenario becomes on emulated GPUs."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate.schemas import read_profiles
from tidegate.sim.build import setup_of
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.emulated import (
    by_kind,
    check_can_be_emulated,
    write_emulated_ensemble,
    write_emulated_model,
    write_profiles,
)
from tidegate_proxy.tritons.model_graphs import why_not_expandable

POINTS = {"points_ms": {1: 6.5, 4: 9.5}, "max_batch": 8}


def scenario(**changes: Any) -> Scenario:
    document = {
        "duration_s": 1,
        "workers": [{"count": 3}],
        "models": [{"name": "m", "slo_ms": 30, "profile": POINTS}],
        "arrivals": {"rate_rps": 60},
        "policies": [{"name": "triton"}],
        **changes,
    }
    return Scenario.model_validate(document)


def config_of(folder: Path, what: Scenario, batching: dict[str, Any] | None) -> model_config_pb2.ModelConfig:
    write_emulated_model(folder, what, what.models[0], what.workers, seed=1, batching=batching)
    assert (folder / "m" / "1" / "model.py").exists()
    text = (folder / "m" / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_a_model_takes_the_true_time_and_has_an_instance_for_each_worker(tmp_path: Path) -> None:
    true = {"alpha_ms": 2, "beta_ms": 4}
    simulation = {"service": {"m": {"profile": true}}, "jitter": {"cv": 0.1, "distribution": "gamma"}}
    config = config_of(tmp_path, scenario(simulation=simulation), None)
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert json.loads(parameters.pop("table_ms")) == {str(rows): 2 * rows + 4 for rows in range(1, 9)}
    assert parameters.pop("tidegate_scheduling") == "batched"
    assert parameters == {"slo_ms": "30.0", "jitter": "0.1", "jitter_kind": "gamma", "seed": "1"}
    assert (config.max_batch_size, config.instance_group[0].count) == (8, 3)
    assert not config.HasField("dynamic_batching")


def test_a_model_of_which_nothing_merges_says_so_to_either(tmp_path: Path) -> None:
    model = {"name": "m", "slo_ms": 30, "profile": POINTS, "scheduling": "unbatched"}
    assert (
        config_of(tmp_path, scenario(models=[model]), None).parameters["tidegate_scheduling"].string_value
        == "unbatched"
    )
    assert not config_of(tmp_path / "own", scenario(models=[model]), {}).HasField("dynamic_batching")


def test_the_policy_triton_becomes_its_dynamic_batcher(tmp_path: Path) -> None:
    options = {
        "preferred_batch_size": [2, 4],
        "max_queue_delay_ms": 1.5,
        "max_queue_size": 9,
        "default_timeout_ms": 20,
        "timeout_action": "delay",
        "allow_timeout_override": True,
    }
    batching = config_of(tmp_path, scenario(), options).dynamic_batching
    assert list(batching.preferred_batch_size) == [2, 4]
    assert batching.max_queue_delay_microseconds == 1500
    queue = batching.default_queue_policy
    assert (queue.max_queue_size, queue.default_timeout_microseconds, queue.allow_timeout_override) == (9, 20_000, True)
    assert queue.timeout_action == queue.DELAY
    assert config_of(tmp_path / "plain", scenario(), {}).HasField("dynamic_batching")
    own = {**options, "models": {"m": {"max_queue_delay_ms": 3}, "n": {"max_queue_size": 1}}}
    batching = config_of(tmp_path / "own", scenario(), own).dynamic_batching
    assert (batching.max_queue_delay_microseconds, batching.default_queue_policy.max_queue_size) == (3000, 9)


def test_on_unlike_gpus_triton_has_an_instance_group_for_each_kind(tmp_path: Path) -> None:
    """Each takes its own time, and lets one model at a time run."""
    times = {"quick": POINTS, "slow": {"points_ms": {1: 20}, "max_batch": 8}}
    workers = [{"count": 1, "gpu": "quick"}, {"count": 2, "gpu": "slow"}, {"count": 1, "gpu": "quick"}]
    mixed = scenario(workers=workers, models=[{"name": "m", "slo_ms": 30, "profiles": times}])
    check_can_be_emulated(mixed, [PolicyChoice(name="triton")])
    write_emulated_model(tmp_path, mixed, mixed.models[0], by_kind(mixed.workers), seed=1, batching={})
    config = text_format.Parse((tmp_path / "m" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    groups = [(each.name, each.count, each.rate_limiter.resources[0].name) for each in config.instance_group]
    assert groups == [("quick", 2, "gpus-0"), ("slow", 2, "gpus-1")]
    told = json.loads(config.parameters["groups_ms"].string_value)
    assert (told["quick"]["4"], told["slow"]["4"]) == (9.5, 20)


def test_tidegate_starts_from_the_profiles_that_simulated_policies_are_told(tmp_path: Path) -> None:
    (written,) = read_profiles(write_profiles(tmp_path / "profiles.json", scenario(), 1)).profiles
    (told,) = setup_of(scenario(), 1).profiles
    assert written.to_profile(8) == told


def test_it_starts_from_every_shape_that_they_are_told_as_requests_have_it(tmp_path: Path) -> None:
    shapes = [
        {"shape": "y:8;x:8", "latency_factor": 3},
        {"shape": "x:16;y:8"},
        {"shape": "x:32;y:8", "known_to_policy": False},
    ]
    shaped = scenario(models=[{"name": "m", "profile": POINTS, "shapes": shapes}])
    written = {each.shape: each for each in read_profiles(write_profiles(tmp_path / "file.json", shaped, 1)).profiles}
    told = {profile.shape: profile for profile in setup_of(shaped, 1).profiles}
    assert set(written) == {"", "x:8;y:8", "x:16;y:8"}
    assert written["x:8;y:8"].to_profile(8).expected == told["y:8;x:8"].expected
    assert written["x:16;y:8"].to_profile(8) == told["x:16;y:8"]
    wrong = scenario(models=[{"name": "m", "profile": POINTS, "shapes": [{"shape": "wide"}]}])
    with pytest.raises(LoadTestError, match="models: 'm': 'wide' is no shape: write NAME:3,48,320"):
        write_profiles(tmp_path / "wrong.json", wrong, 1)


STAGES = [{"model": "m"}, {"model": "n", "after": []}, {"name": "join", "model": "n", "after": ["m", "n"]}]


def two_models(**changes: Any) -> dict[str, Any]:
    models = [
        {"name": name, "profile": {"points_ms": {1: 6.5}, "max_batch": rows}} for name, rows in (("m", 8), ("n", 4))
    ]
    return {"models": models, "graphs": [{"name": "g", "slo_ms": 50, "stages": STAGES}], **changes}


def test_a_graph_becomes_an_ensemble_of_emulated_models(tmp_path: Path) -> None:
    graphs = scenario(**two_models())
    check_can_be_emulated(graphs, [PolicyChoice(name="symphony"), PolicyChoice(name="triton")])
    for model in graphs.models:
        write_emulated_model(tmp_path, graphs, model, graphs.workers, seed=1, batching=None)
    write_emulated_ensemble(tmp_path, graphs, graphs.graphs[0])
    m, n, ensemble = (
        text_format.Parse((tmp_path / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        for name in ("m", "n", "g")
    )
    assert [len(each.input) for each in (m, n, ensemble)] == [1, 2, 1], "as many as a stage has predecessors"
    assert [len(each.output) for each in (m, n, ensemble)] == [1, 2, 1]
    assert (ensemble.platform, ensemble.max_batch_size) == ("ensemble", 4)
    steps = [(dict(step.input_map), dict(step.output_map)) for step in ensemble.ensemble_scheduling.step]
    assert steps == [
        ({"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"}),
        ({"INPUT0": "INPUT0", "INPUT1": "INPUT0"}, {"OUTPUT0": "OUTPUT1"}),
        ({"INPUT0": "OUTPUT0", "INPUT1": "OUTPUT1"}, {"OUTPUT0": "OUTPUT2"}),
    ]
    assert [each.name for each in ensemble.output] == ["OUTPUT2"]
    parameters = {key: value.string_value for key, value in ensemble.parameters.items()}
    assert parameters == {"tidegate_scheduling": "expanded", "slo_ms": "50.0"}
    assert (tmp_path / "g" / "1").is_dir()
    assert why_not_expandable(ensemble, {"m", "n"}, {}) == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"models": [{"name": "m", "profile": POINTS, "time_ms": 3}]}, "`time_ms`"),
        ({"models": [{"name": "m", "profile": POINTS, "apps": [{"name": "a", "time_ms": 3}]}]}, "`time_ms`"),
        ({"simulation": {"interference": 1.5}}, "simulation.interference"),
        ({"simulation": {"failures": {"probability": 0.1}}}, "simulation.failures"),
        ({"simulation": {"events": [{"at_s": 1, "lost": 0}]}}, "simulation.events"),
        ({"workers": [{"count": 1000}]}, "1000 models on workers"),
        (
            two_models(workers=[{"count": 1, "hosts": ["m"]}, {"count": 1, "hosts": ["n"]}]),
            "graphs: 'g': no entry of `workers` hosts all of its models",
        ),
        (
            two_models(workers=[{"count": 1, "gpu": "A100"}, {"count": 1}]),
            "graphs: emulated GPUs run them only where no model is split",
        ),
    ],
)
def test_what_cannot_be_emulated_is_said(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(LoadTestError, match=says):
        check_can_be_emulated(scenario(**changes), [PolicyChoice(name="fifs")])


def test_one_triton_by_itself_has_equal_workers() -> None:
    models = [{"name": name, "profile": POINTS} for name in ("m", "n")]
    workers = [{"count": 1, "hosts": ["m"]}, {"count": 1, "hosts": ["n"]}]
    mixed = scenario(models=models, workers=workers)
    check_can_be_emulated(mixed, [PolicyChoice(name="fifs")])
    with pytest.raises(LoadTestError, match="host the same models"):
        check_can_be_emulated(mixed, [PolicyChoice(name="triton")])
