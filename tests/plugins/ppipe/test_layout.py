"""A plan's layout has the workers of the plan, and the simulator runs it."""

from collections import Counter
from pathlib import Path

import pytest

from tests.plugins.ppipe.problems import profile, two_classes
from tests.plugins.ticks import Ticks
from tidegate.api import PlanningError
from tidegate.schemas import Device, Layout, Mps, read_document, write_document
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, read_scenario
from tidegate_ppipe.layout import layout_of
from tidegate_ppipe.plan import PpipePlan
from tidegate_ppipe.planners import plan_ppipe
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem


def two_models() -> PpipeProblem:
    """On GPUs that stand two to a node."""
    names = ("one", "two")
    models = tuple(
        PlannedModel(name=name, slo_ms=60, profile=profile(name, {"fast": [4000, 5000], "slow": [12000, 30000]}))
        for name in names
    )
    classes = (GpuClass(name="fast", count=4, per_node=2, max_share=2), GpuClass(name="slow", count=5, max_share=2))
    return two_classes(models=models, classes=classes)


@pytest.fixture(scope="module")
def problem() -> PpipeProblem:
    return two_models()


@pytest.fixture(scope="module")
def plan(problem: PpipeProblem) -> PpipePlan:
    return plan_ppipe(problem, time_limit_s=10, progress=Ticks())


def test_each_pool_has_its_workers_and_no_gpu_more_than_its_shares(problem: PpipeProblem, plan: PpipePlan) -> None:
    layout = layout_of(problem, plan)
    planned = [
        (part.blocks, part.workers)
        for model in plan.models
        for pipeline in model.pipelines
        for part in pipeline.partitions
    ]
    hosts = Counter(name for worker in layout.workers for name in worker.hosts)
    assert [(part.blocks, hosts[part.name]) for part in layout.partitions] == planned
    owners = {part.name: part.model for part in layout.partitions}
    gpus = {worker.device for worker in layout.workers}
    for gpu in gpus:
        there = [worker for worker in layout.workers if worker.device == gpu]
        assert len({owners[worker.hosts[0]] for worker in there}) == len({worker.slice for worker in there}) == 1
        assert sum(worker.slice.percent if isinstance(worker.slice, Mps) else 100 for worker in there) <= 100
    assert Counter(gpu.product for gpu in gpus) == Counter(plan.gpus)
    per_node = Counter(gpu.node for gpu in gpus)
    assert max(per_node[node] for node in per_node if node.startswith("fast")) == 2
    assert {per_node[node] for node in per_node if node.startswith("slow")} == {1}


def test_policies_are_told_the_latencies_of_the_plan(problem: PpipeProblem, plan: PpipePlan) -> None:
    layout = layout_of(problem, plan)
    models, workers, profiles, network = layout.contract()
    assert [model.name for model in models] == ["one", "two"]
    assert len(workers) == sum(
        part.workers for model in plan.models for pipeline in model.pipelines for part in pipeline.partitions
    )
    latency = {profile.partition: profile.expected[-1] / 1000 for profile in profiles}
    for model, told in zip(plan.models, models, strict=True):
        for pipeline, names in zip(model.pipelines, told.pipelines, strict=True):
            assert names.max_rows == pipeline.batch
            for part, name in zip(pipeline.partitions, names.partitions, strict=True):
                assert latency[name] == pytest.approx(part.latency_us, abs=0.2)
                assert network is not None
                transfer_us = network.transfer_ns(name, pipeline.batch) / 1000
                assert transfer_us == pytest.approx(part.transfer_us, abs=0.2)


@pytest.mark.parametrize("policy", ["fifs", "ppipe"])
def test_the_simulator_serves_most_of_what_was_planned(
    problem: PpipeProblem, plan: PpipePlan, policy: str, tmp_path: Path
) -> None:
    write_document(tmp_path / "layout.json", layout_of(problem, plan))
    assert read_document(tmp_path / "layout.json", Layout) == layout_of(problem, plan)
    total_rps = sum(model.rate_rps for model in plan.models)
    (tmp_path / "scenario.yaml").write_text(
        "layout: layout.json\nduration_s: 4\nwarmup_s: 0\n"
        f"arrivals: {{process: poisson, rate_rps: {total_rps * 0.7}}}\n"
    )
    result = simulate(RunSpec(read_scenario(tmp_path / "scenario.yaml"), PolicyChoice(name=policy), seed=1))
    assert result.total.accepted > 0.6 * 4 * total_rps
    assert result.total.answered > 0.8 * result.total.accepted


def test_a_plan_of_another_problem_is_refused(plan: PpipePlan) -> None:
    with pytest.raises(PlanningError, match="the plan is not of this problem"):
        layout_of(two_classes(), plan)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("workers",), 40, "needs more than the [45] (fast|slow) of its problem"),
        (("gpu",), "T4", "it has no class 'T4'"),
        (("blocks",), (0, 1), "ends with block 1, and the model has"),
    ],
)
def test_an_edited_plan_that_its_problem_does_not_bear_is_refused(
    problem: PpipeProblem, plan: PpipePlan, path: tuple[str], value: object, says: str
) -> None:
    document = plan.model_dump(mode="json")
    pipeline = document["models"][0]["pipelines"][0]
    pipeline["partitions"] = pipeline["partitions"][:1]
    pipeline["partitions"][0] |= {"blocks": (0, len(problem.models[0].blocks.blocks)), path[0]: value}
    with pytest.raises(PlanningError, match=says):
        layout_of(problem, PpipePlan.model_validate(document))


def test_a_share_is_so_many_percent() -> None:
    part = {"blocks": (0, 3), "gpu": "fast", "share": 2, "workers": 3}
    part |= {"latency_us": 20_000, "transfer_us": 0, "rate_rps": 300}
    pipeline = {"batch": 2, "rate_rps": 300, "gather_us": 0, "partitions": [part]}
    model = {"name": "m", "rate_rps": 300, "normalized_rps": 300, "pipelines": [pipeline]}
    by_hand = {"objective": 300, "bound": None, "goal": "throughput", "models": [model], "gpus": {"fast": 2}}
    layout = layout_of(two_classes(), PpipePlan.model_validate(by_hand))
    assert [(worker.speed, worker.device, worker.slice) for worker in layout.workers] == [
        ("fast/mps-50", Device("fast-node-0", 0, "fast"), Mps(50)),
        ("fast/mps-50", Device("fast-node-0", 0, "fast"), Mps(50)),
        ("fast/mps-50", Device("fast-node-1", 0, "fast"), Mps(50)),
    ]
    assert set(layout.partitions[0].latency_ms) == {"fast/mps-50"}
