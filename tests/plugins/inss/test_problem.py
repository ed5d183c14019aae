"""What cannot be served is named, with the remedy; so is a plan that is not of its problem."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.plugins.inss.problems import INTERFERENCE, problem, tenant
from tidegate.api import PlanningError
from tidegate.host import Plugins
from tidegate.schemas import Mps, write_document
from tidegate_inss.layout import layout_of
from tidegate_inss.plan import SharePlan
from tidegate_inss.problem import GpuPool, ShareProblem

CALM = tenant("calm", 50, 60)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            problem(tenant("calm", 50, 1.9)),
            "'calm' takes 2 ms for one row on a whole V100, more than its SLO of 1.9 ms",
        ),
        (problem(tenant("bert", 50, 60)), "knows nothing of 'bert': measure it"),
        (problem(tenant("calm", 50, 60, memory_mib=900), memory_mib=800), "takes 900 MiB with one row"),
        (problem(CALM, tenant("slow", 1, 900), units=1), "the share of a model would round to nothing"),
        (
            ShareProblem(gpus=(GpuPool(product="A100", count=1),), interference=INTERFERENCE, models=(CALM,)),
            "measured on 'V100', not on 'A100'",
        ),
        (problem(CALM, interference="/nowhere.json"), "interference: /nowhere.json"),
        (problem(CALM, interference=INTERFERENCE.model_copy(update={"gpu": "B1"})), "half the number of"),
    ],
)
def test_what_no_plan_can_mend_is_said(wrong: ShareProblem, said: str) -> None:
    with pytest.raises(PlanningError, match=said):
        wrong.check()


def test_a_model_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="listed twice"):
        problem(CALM, CALM)


def test_a_copy_with_other_fields_goes_by_these() -> None:
    asked = problem(CALM)
    assert (asked.measured, asked.units_per_gpu, len(asked.devices)) == (INTERFERENCE, 40, 1)
    other = INTERFERENCE.model_copy(update={"gpu": "A100"})
    pools = (GpuPool(product="A100", count=2),)
    copied = asked.model_copy(update={"interference": other, "gpus": pools})
    assert (copied.measured, copied.units_per_gpu, len(copied.devices)) == (other, 54, 2)


def test_the_interference_file_may_be_a_path(tmp_path: Path) -> None:
    write_document(tmp_path / "v100.json", INTERFERENCE)
    assert problem(CALM, interference=str(tmp_path / "v100.json")).measured == INTERFERENCE


def test_percents_are_what_mps_rounds_down_to_the_units() -> None:
    given = problem(CALM)
    assert all(given.percent(units) * 40 // 100 == units for units in range(1, 41))


def _planned() -> tuple[ShareProblem, SharePlan]:
    given = problem(CALM, tenant("slow", 3, 600))
    plan = Plugins.installed().planner("gslice").run(given, time_limit_s=1, progress=lambda **_: 0.0)
    assert isinstance(plan, SharePlan)
    return given, plan


def test_a_plan_becomes_a_layout_of_mps_shares() -> None:
    given, plan = _planned()
    layout = layout_of(given, plan)
    shares = [share for gpu in plan.gpus for share in gpu.shares]
    assert [worker.slice for worker in layout.workers] == [Mps(share.percent) for share in shares]
    assert [worker.hosts for worker in layout.workers] == [(share.model,) for share in shares]
    assert layout.workers[0].speed == f"V100/mps-{shares[0].percent}"


def test_a_plan_of_another_problem_or_without_a_model_is_refused() -> None:
    given, plan = _planned()
    with pytest.raises(PlanningError, match="not of this problem"):
        layout_of(problem(CALM), plan)
    with pytest.raises(PlanningError, match="no share for model 'quick'"):
        layout_of(given.model_copy(update={"models": (*given.models, tenant("quick", 1, 20))}), plan)
    (gpu,) = plan.gpus
    tiny = gpu.model_copy(update={"shares": (gpu.shares[0].model_copy(update={"percent": 2}), *gpu.shares[1:])})
    with pytest.raises(PlanningError, match="rounds down to nothing: give it 3 % or more"):
        layout_of(given, plan.model_copy(update={"gpus": (tiny,)}))


@pytest.mark.parametrize("name", ["shares", "gpulet", "gslice", "igniter"])
def test_every_planner_is_offered(name: str) -> None:
    plan = Plugins.installed().planner(name).run(problem(CALM), time_limit_s=0.1, progress=lambda **_: 0.0)
    assert isinstance(plan, SharePlan)
    assert [model.name for model in plan.models] == ["calm"]
