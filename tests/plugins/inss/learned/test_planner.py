"""`tidegate plan inss`: plans that can be carried out, better than rules of thumb; or the reason why there is none."""

from hashlib import sha256

import numpy as np
import pytest

from tests.plugins.inss.learned.made_up import Randomly
from tidegate.api import PlanningError
from tidegate.schemas import read_document
from tidegate_inss.learned.networks import RECORD_FILE, SHIPPED_FOLDER, Networks
from tidegate_inss.learned.outcome import by_need, to_the_least_busy
from tidegate_inss.learned.planner import plan_by, plan_inss, plan_inss_ni
from tidegate_inss.plan import SharePlan
from tidegate_inss.problem import GpuPool, ShareProblem
from tidegate_inss.training.training_record import TrainingRecord, judge
from tidegate_inss.training.workloads import Workloads, drawn_problem

NAMES = ["inss", "inss-ni"]


def unhurried(*, objective: float | None = None, bound: float | None = None) -> float:
    return 0.0


def problem_of(models: int, gpus: int, *, seed: int = 0, units: int = 54, load: float = 0.5) -> ShareProblem:
    """Models of the made-up family, each at its part of what all GPUs bear, more or less."""
    drawn = drawn_problem(np.random.default_rng(seed), models, units)
    tenants = []
    for tenant in drawn.models:
        whole = drawn.measured.models[tenant.name].gpu_ms.at(8, 100)
        rate = load * gpus / models * 8000 / whole / 2
        tenants.append(tenant.model_copy(update={"rate_rps": rate, "slo_ms": max(tenant.slo_ms, 4 * whole)}))
    pool = GpuPool(product="made-up", count=gpus, memory_mib=40_000)
    return drawn.model_copy(update={"models": tuple(tenants), "gpus": (pool,)})


def planned(problem: ShareProblem, run: object = plan_inss) -> SharePlan:
    assert callable(run)
    plan = run(problem, time_limit_s=10, progress=unhurried)
    assert isinstance(plan, SharePlan)
    return plan


@pytest.mark.parametrize("run", [plan_inss, plan_inss_ni])
@pytest.mark.parametrize(
    ("models", "gpus"), [(10, 4), (1, 1), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((9, 5), (40, 16)))]
)
def test_gpus_are_divided_without_fragments_and_everybody_is_served(run: object, models: int, gpus: int) -> None:
    problem = problem_of(models, gpus)
    plan = planned(problem, run)
    assert all(sum(share.units for share in gpu.shares) == 54 for gpu in plan.gpus)
    assert {share.model for gpu in plan.gpus for share in gpu.shares} == {tenant.name for tenant in problem.models}
    assert not any(model.missing for model in plan.models)
    assert plan == planned(problem, run), "the same again"


def test_more_decisions_make_no_worse_plan() -> None:
    networks = Networks(SHIPPED_FOLDER / "inss")
    worse = 0
    for seed in range(12):
        problem = problem_of(11, 4, seed=seed, load=0.9)
        one, many = (
            plan_by(networks, problem, interference=True, progress=unhurried, tried=tried).objective
            for tried in (1, 16)
        )
        assert many >= one * (1 - 1e-9)
        worse += one < many
    assert worse > 3, "chance helped"


def test_what_networks_are_not_made_for_is_refused() -> None:
    with pytest.raises(PlanningError, match="up to 8 models on a GPU, and these are 9 on 1: give more GPUs"):
        planned(problem_of(9, 1))
    with pytest.raises(PlanningError, match="MPS divides this one into 7 parts: take another planner"):
        planned(problem_of(2, 1).model_copy(update={"units": 7}))


def test_who_fits_nowhere_is_named() -> None:
    problem = problem_of(6, 1, load=0.2)
    most = max(tenant.takes_mib(1) for tenant in problem.models)
    pool = GpuPool(product="made-up", count=1, memory_mib=int(most) + 1)
    plan = planned(problem.model_copy(update={"gpus": (pool,)}))
    missing = [model for model in plan.models if model.missing]
    assert missing
    assert all("memory" in model.missing and model.bears_rps == 0 for model in missing)
    assert missing[0].name in plan.summary


@pytest.mark.parametrize("name", NAMES)
def test_networks_have_learned(name: str) -> None:
    """On models that they were neither trained nor chosen by: far better than chance, no worse than rules of thumb.

    By how much they are better, and that the search is, docs/results/inss.md says.
    """
    workloads = Workloads(424_242, pool=48, interference=name == "inss")
    apart = [workloads.draw(32, 4) for _ in range(6)]
    networks, chance = Networks(SHIPPED_FOLDER / name), Randomly(0)
    learned = judge(apart, networks.place, networks.share)
    assert learned["reward"] > judge(apart, chance, chance.share)["reward"] + 8
    assert learned["reward"] > judge(apart, to_the_least_busy, by_need)["reward"] - 0.1


@pytest.mark.parametrize("name", NAMES)
def test_the_training_record_is_that_of_the_networks_beside_it(name: str) -> None:
    record = read_document(SHIPPED_FOLDER / name / RECORD_FILE, TrainingRecord)
    for file, digest in record.networks_sha256.items():
        assert sha256((SHIPPED_FOLDER / name / file).read_bytes()).hexdigest() == digest, file
    assert record.settings["interference"] is (name == "inss")
    assert record.curve[-1]["round"] == record.settings["rounds"]
    assert record.curve[-1]["reward"] > record.curve[0]["reward"]
