"""Split models and several kinds of GPU: a scenario as a deployment, and live."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate.host import PluginError
from tidegate.report import Colors
from tidegate.schemas import Device, InterferenceModel, Layout, Mps, WholeDevice, read_deployment, read_document
from tidegate.sim.build import setup_of
from tidegate.sim.charts import gantt_charts
from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, layout_of
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.emulated import check_can_be_emulated
from tidegate_loadtest.emulated_layout import needs_layout, write_emulated_deployment
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.scenario_run import plan_runs, run_live

FRONT: dict[str, Any] = {
    "name": "m.front",
    "output_bytes": 70_000,
    "profiles": {"slow": {"alpha_ms": 4, "beta_ms": 30}},
}
BACK: dict[str, Any] = {"name": "m.back", "profiles": {"fast": {"alpha_ms": 2, "beta_ms": 20}}}
SPLIT: dict[str, Any] = {
    "warmup_s": 0.5,
    "duration_s": 3,
    "workers": [
        {"count": 1, "gpu": "fast", "hosts": ["m.back", "whole"]},
        {"count": 2, "gpu": "slow", "per_gpu": 2, "node": "n", "hosts": ["m.front", "whole"]},
    ],
    "models": [
        {"name": "m", "slo_ms": 800, "pipelines": [{"batch": 4, "partitions": [FRONT, BACK]}]},
        {
            "name": "whole",
            "slo_ms": 900,
            "weight": 0.3,
            "max_batch": 4,
            "profiles": {"fast": {"alpha_ms": 3, "beta_ms": 20}, "slow": {"alpha_ms": 9, "beta_ms": 60}},
        },
    ],
    "network": {"gbps": 10},
    "arrivals": {"rate_rps": 20},
    "policies": [{"name": "fifs"}],
}


def scenario(**changes: Any) -> Scenario:
    return Scenario.model_validate({**SPLIT, **changes})


def test_a_layout_tells_policies_what_the_simulator_tells_them() -> None:
    told, layout = setup_of(scenario(), 3), layout_of(scenario())
    models, workers, profiles, network = layout.contract()
    assert (models, workers, network) == (told.models, told.workers, told.network)
    by_place = {(profile.partition, profile.device_class): profile.expected for profile in told.profiles}
    assert {(profile.partition, profile.device_class): profile.expected for profile in profiles} == by_place
    assert [(worker.device, worker.slice) for worker in layout.workers] == [
        (Device("node0", 0, "fast"), WholeDevice()),
        (Device("n", 0, "slow"), Mps(50)),
        (Device("n", 0, "slow"), Mps(50)),
    ]


def config_of(repository: Path, model: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse((repository / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def test_partitions_take_the_true_time_of_their_gpu_and_send_their_bytes(tmp_path: Path) -> None:
    simulation = {
        "service": {"m.back": {"profile": {"alpha_ms": 1, "beta_ms": 50}}},
        "jitter": {"cv": 0.1, "distribution": "gamma"},
        "stalls": {"probability": 0.01, "factor": 7},
    }
    folder, record = tmp_path / "deployment", tmp_path / "events.jsonl"
    write_emulated_deployment(folder, scenario(simulation=simulation), PolicyChoice(name="eager"), 3, record)
    deployment = read_deployment(folder)
    fast, slow, other = (folder / worker.repository for worker in deployment.workers)
    front, back = config_of(slow, "m.front"), config_of(fast, "m.back")
    assert (front.output[0].name, list(front.output[0].dims)) == ("STEP1", [-1])
    assert (back.input[0].name, back.output[0].name) == ("STEP1", "OUTPUT0")
    assert list(back.model_warmup[0].inputs["STEP1"].dims) == [70_000]
    assert front.parameters["output_bytes"].string_value == "70000"
    times = json.loads(back.parameters["table_ms"].string_value)
    assert times == {"1": 51, "2": 52, "3": 53, "4": 54}
    assert json.loads(config_of(slow, "whole").parameters["table_ms"].string_value)["1"] == 69
    stalls = [front.parameters[f"stall_{name}"].string_value for name in ("probability", "factor")]
    assert stalls == ["0.01", "7.0"]
    seeds = {config_of(folder, "whole").parameters["seed"].string_value for folder in (fast, slow, other)}
    assert len(seeds) == 3, "jitter must not be the same on all workers"
    assert read_document(folder / "layout.json", Layout) == layout_of(scenario())
    assert json.loads((folder / "tidegate.yaml").read_text())["event_log"] == str(record)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workers": [{**SPLIT["workers"][0]}, {**SPLIT["workers"][1], "count": 40}]}, "workers: 41, and with split"),
        (
            {
                "models": [
                    {**SPLIT["models"][0], "pipelines": [{"batch": 4, "partitions": [FRONT, BACK]}] * 2},
                    SPLIT["models"][1],
                ]
            },
            None,
        ),
        (
            {
                "models": [
                    {
                        "name": "m",
                        "pipelines": [
                            {"batch": 4, "partitions": [FRONT, BACK]},
                            {"batch": 4, "partitions": [FRONT]},
                        ],
                    },
                    SPLIT["models"][1],
                ]
            },
            "partition 'm.front' stands at different places",
        ),
    ],
)
def test_what_cannot_be_emulated_is_said(changes: dict[str, Any], says: str | None) -> None:
    if says is None:
        check_can_be_emulated(scenario(**changes), [PolicyChoice(name="fifs")])
        return
    with pytest.raises(LoadTestError, match=says):
        check_can_be_emulated(scenario(**changes), [PolicyChoice(name="fifs")])


MINDS = {"cache": 0.004, "dram": 0.0, "neighbor": 0.2}
SHARED: dict[str, Any] = {
    "warmup_s": 0.5,
    "duration_s": 4,
    "workers": [
        {"count": 1, "gpu": "V100", "device": 0, "percent": percent, "hosts": [name]}
        for name, percent in (("a", 40), ("b", 60))
    ],
    "models": [{"name": name, "profile": {"alpha_ms": 0, "beta_ms": 40, "max_batch": 1}} for name in "ab"],
    "arrivals": {"process": "uniform", "rate_rps": 60},
    "policies": [{"name": "fifs"}],
    "simulation": {
        "learn": False,
        "interference": {
            "gpu": "V100",
            "models": {
                name: {
                    "gpu_ms": {"rows": [1], "percents": [40, 60], "taken_ms": [[30, 20]]},
                    "transfer_ms": {"base": 10},
                    "cache_percent": {"base": cache},
                    "sensitivity": MINDS,
                }
                for name, cache in (("a", 50), ("b", 100))
            },
        },
    },
}
"""Two models that are always busy on one GPU. 3/4 of `a` take 1.6 times as long, 2/3 of `b` 1.4 times."""
SLOWED_MS = {"a": 40 * (1 + 0.75 * 0.6), "b": 40 * (1 + 0.4 * 2 / 3)}


def test_emulated_gpus_are_told_who_slows_whom(tmp_path: Path) -> None:
    shared = Scenario.model_validate(SHARED)
    assert needs_layout(shared)
    check_can_be_emulated(shared, [PolicyChoice(name="fifs")])
    with pytest.raises(LoadTestError, match="nor who shares a GPU"):
        check_can_be_emulated(shared, [PolicyChoice(name="triton")])
    folder = tmp_path / "deployment"
    write_emulated_deployment(folder, shared, PolicyChoice(name="fifs"), 3, tmp_path / "events.jsonl")
    told = [
        json.loads(config_of(folder / str(number), name).parameters["neighbors"].string_value)
        for number, name in enumerate("ab")
    ]
    assert [each["board"] for each in told] == [str(folder / "boards" / "node0-0")] * 2
    assert [each["uses"] for each in told] == [
        {"1": pytest.approx([50, 0, 3 / 4])},
        {"1": pytest.approx([100, 0, 2 / 3])},
    ]
    assert [each["minds"] for each in told] == [[0.004, 0, 0.2]] * 2
    assert read_document(folder / "interference.json", InterferenceModel) == shared.simulation.interference


def test_each_gpu_has_a_board_of_its_own(tmp_path: Path) -> None:
    apart = [{**worker, "device": number} for number, worker in enumerate(SHARED["workers"])]
    document = Scenario.model_validate({**SHARED, "workers": apart})
    folder = tmp_path / "deployment"
    write_emulated_deployment(folder, document, PolicyChoice(name="fifs"), 3, tmp_path / "events.jsonl")
    told = [
        json.loads(config_of(folder / n, name).parameters["neighbors"].string_value)
        for n, name in (("0", "a"), ("1", "b"))
    ]
    assert [Path(each["board"]).name for each in told] == ["node0-0", "node0-1"]


def test_triton_by_itself_runs_no_pipelines() -> None:
    with pytest.raises(LoadTestError, match="`triton` is one Triton by itself"):
        check_can_be_emulated(scenario(), [PolicyChoice(name="triton")])
    assert not needs_layout(scenario(workers=[{"count": 2, "gpu": "fast"}], models=SPLIT["models"][1:], network=None))


@pytest.mark.slow
@pytest.mark.usefixtures("start_triton")
def test_live_on_emulated_gpus_of_two_kinds(tmp_path: Path) -> None:
    document = scenario()
    (run,) = plan_runs(document, [], [5], SendingOptions({}), gantt_s=3)
    live = run_live(run, work=tmp_path).result
    simulated = simulate(RunSpec(document, run.policy, 5, gantt_s=3))
    for row, other in zip(live.rows, simulated.rows, strict=True):
        assert (row.model, row.accepted) == (other.model, other.accepted)
        assert row.answered + sum(row.dropped.values()) + row.failed + row.stranded == row.accepted
        assert row.failed == row.stranded == 0
    assert live.total.busy_shares.keys() == simulated.total.busy_shares.keys()
    assert {bar.worker for bar in live.gantt} == set(live.total.busy_shares)
    (drawn,) = gantt_charts([live], Colors([model.name for model in document.models], [live.total.policy]))
    assert all(f">{worker}<" in drawn.body or worker in drawn.body for worker in live.total.busy_shares)
    ended = [path for path in (tmp_path / "deployment" / "run").iterdir() if path.name == "state.json"]
    assert ended == []


def median_ms(result: RunResult, model: str) -> float:
    """What a stage of the model takes."""
    return 1000 * median(bar.end_s - bar.start_s for bar in result.gantt if bar.model == model)


def test_simulated_neighbors_slow_each_other_down() -> None:
    """Both are offered twice what they can do, so that each is always busy: the median stage is one beside the
    other."""
    document = Scenario.model_validate(SHARED)
    (run,) = plan_runs(document, [], [5], SendingOptions({}), gantt_s=4)
    simulated = simulate(RunSpec(document, run.policy, 5, gantt_s=4))
    for name, slowed_ms in SLOWED_MS.items():
        assert median_ms(simulated, name) == pytest.approx(slowed_ms, rel=0.01)


ADVISED: dict[str, Any] = {
    "warmup_s": 1,
    "duration_s": 8,
    "workers": [{"count": 2, "gpu": "A100"}],
    "models": [{"name": "m", "slo_ms": 400, "profile": {"alpha_ms": 2, "beta_ms": 20, "max_batch": 4}}],
    "arrivals": {"process": "uniform", "rate_rps": 8},
    "policies": [{"name": "symphony", "options": {"advice_every_s": 0.5}}],
    "controller": {"name": "advised-workers", "interval_s": 1.0, "cooldown_s": 0.2, "min_improvement": 0},
}
"""Two workers, of which one will do."""


def test_the_controller_of_a_scenario_is_that_of_its_deployment(tmp_path: Path) -> None:
    document = Scenario.model_validate(ADVISED)
    assert needs_layout(document)
    write_emulated_deployment(tmp_path / "deployment", document, document.policies[0], 3, tmp_path / "events.jsonl")
    told = json.loads((tmp_path / "deployment" / "tidegate.yaml").read_text())["controller"]
    assert (told["name"], told["cooldown_s"], told["enabled"]) == ("advised-workers", 0.2, True)
    unknown = Scenario.model_validate({**ADVISED, "controller": {"name": "nobody"}})
    with pytest.raises(PluginError, match="no controller named 'nobody'"):
        plan_runs(unknown, [], [5], SendingOptions({}))
    with pytest.raises(LoadTestError, match="nor a controller"):
        check_can_be_emulated(document, [PolicyChoice(name="triton")])


@pytest.mark.slow
@pytest.mark.usefixtures("start_triton")
def test_live_changes_of_the_layout_are_among_the_results(tmp_path: Path) -> None:
    (run,) = plan_runs(Scenario.model_validate(ADVISED), [], [5], SendingOptions({}))
    result = run_live(run, work=tmp_path).result
    states = [change.state for change in result.changes]
    assert states[:3] in (every := ["starting", "switched", "done"], every[:2], every[:1]), "as far as it came"
    assert result.changes[0].stops and not result.changes[0].starts
    assert result.total.mean_gpus is not None and 1 <= result.total.mean_gpus <= 2
    assert (result.total.failed, result.total.stranded) == (0, 0)
