"""Split models and several kinds of GPU: a scenario as a deployment, and live."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate.documents import Device, Layout, Mps, Whole, read_deployment, read_document
from tidegate.sim.build import setup_of
from tidegate.sim.charts import gantt
from tidegate.sim.run import Run, simulate
from tidegate.workload import PolicyChoice, Scenario, layout_of
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.emulated import check_can_be_emulated
from tidegate_loadtest.emulated_layout import needs_layout, write_emulated_deployment
from tidegate_loadtest.live import Sending
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
            "share": 0.3,
            "max_batch": 4,
            "profiles": {"fast": {"alpha_ms": 3, "beta_ms": 20}, "slow": {"alpha_ms": 9, "beta_ms": 60}},
        },
    ],
    "network": {"gbps": 10},
    "arrivals": {"rate_rps": 20},
    "policies": [{"name": "fifs"}],
}


def scenario(**changes: Any) -> Scenario:  # noqa: ANN401
    return Scenario.model_validate({**SPLIT, **changes})


def test_a_layout_tells_policies_what_the_simulator_tells_them() -> None:
    told, layout = setup_of(scenario(), 3), layout_of(scenario())
    models, workers, profiles, network = layout.contract()
    assert (models, workers, network) == (told.models, told.workers, told.network)
    by_place = {(profile.partition, profile.kind): profile.expected for profile in told.profiles}
    assert {(profile.partition, profile.kind): profile.expected for profile in profiles} == by_place
    assert [(worker.device, worker.slice) for worker in layout.workers] == [
        (Device("node0", 0, "fast"), Whole()),
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
    assert json.loads((folder / "tidegate.yaml").read_text())["record"] == str(record)


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


def test_triton_by_itself_runs_no_pipelines() -> None:
    with pytest.raises(LoadTestError, match="`triton` is one Triton by itself"):
        check_can_be_emulated(scenario(), [PolicyChoice(name="triton")])
    assert not needs_layout(scenario(workers=[{"count": 2, "gpu": "fast"}], models=SPLIT["models"][1:], network=None))


@pytest.mark.slow
@pytest.mark.usefixtures("start_triton")
def test_live_on_emulated_gpus_of_two_kinds(tmp_path: Path) -> None:
    document = scenario()
    (run,) = plan_runs(document, [], [5], Sending({}), gantt_s=3)
    live = run_live(run, work=tmp_path).result
    simulated = simulate(Run(document, run.policy, 5, gantt_s=3))
    for row, other in zip(live.rows, simulated.rows, strict=True):
        assert (row.model, row.accepted) == (other.model, other.accepted)
        assert row.answered + sum(row.dropped.values()) + row.failed + row.stranded == row.accepted
        assert row.failed == row.stranded == 0
        assert row.attainment > 0.7
    assert live.total.busy_shares.keys() == simulated.total.busy_shares.keys()
    assert {bar.worker for bar in live.gantt} == set(live.total.busy_shares)
    assert len(gantt(live)["data"]) == 2
    ended = [path for path in (tmp_path / "deployment" / "run").iterdir() if path.name == "state.json"]
    assert ended == []
