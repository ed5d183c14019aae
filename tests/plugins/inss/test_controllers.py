"""Shares follow the load: other ones where those that serve bear too little, and models stay where they can."""

from random import Random
from typing import Any

import pytest

from tests.controllers import step
from tests.plugins.inss.problems import INTERFERENCE, problem, tenant
from tidegate.api import PlanningError
from tidegate.control import Controller, ControllerSpec, ModelLoad, Observation
from tidegate.host import PluginError, Plugins, make_controller
from tidegate.schemas import Layout, Mps, WholeDevice
from tidegate.testing import ControllerConformance
from tidegate_inss.controllers import GsliceLoop, ShareReplanning
from tidegate_inss.layout import layout_of
from tidegate_inss.planners import plan_shares
from tidegate_inss.problem import ShareProblem

S = 1_000_000_000
GIVEN = problem(tenant("quick", 2400, 20), tenant("slow", 90, 400), tenant("calm", 900, 60), gpus=2)
FIRST = layout_of(GIVEN, plan_shares(GIVEN, time_limit_s=1, progress=lambda **_: 0.0))
RATES = {model.name: model.rate_rps for model in GIVEN.models}


class TestShareReplanning(ControllerConformance):
    spec = ControllerSpec("share-replanning", "Shares as rates are", ShareReplanning)
    options = {"problem": GIVEN}  # noqa: RUF012
    layout = FIRST
    situations = 2


class TestGsliceLoop(ControllerConformance):
    spec = ControllerSpec("gslice-loop", "Shares as the loop has them", GsliceLoop)
    options = {"problem": GIVEN}  # noqa: RUF012
    layout = FIRST
    situations = 2


def made(name: str, **options: Any) -> Controller:
    spec = Plugins.installed().controller(name)
    return make_controller(spec, FIRST, {"problem": GIVEN, **options})


def observed(present: Layout, **times: float) -> Observation:
    loads = {}
    for name, rate in RATES.items():
        rps = rate * times.get(name, 1.0)
        loads[name] = ModelLoad(rps, rps, 1, int(rps * 10), 1.0)
    busy = dict.fromkeys([worker.name for worker in present.workers], 0.5)
    return Observation(S, 10 * S, present, loads, busy)


def percents(layout: Layout) -> dict[tuple[str, int | str], int]:
    """The shares by model and GPU."""
    found = {}
    for worker in layout.workers:
        assert isinstance(worker.slice, Mps)
        found[worker.hosts[0], worker.device.id] = worker.slice.percent
    return found


def test_shares_stay_while_they_bear_what_comes() -> None:
    controller = made("share-replanning")
    assert step(controller, observed(FIRST)) is None
    assert step(controller, observed(FIRST, quick=0.3, slow=0.5)) is None


def test_a_neighbor_gives_way_before_anybody_moves() -> None:
    """As the one is asked for more and its neighbors for less, shares change, and nobody moves."""
    controller = made("share-replanning")
    changed = step(controller, observed(FIRST, quick=1.4, slow=0.2, calm=0.4))
    assert changed is not None
    before, after = percents(FIRST), percents(changed)
    assert before.keys() == after.keys()
    (gpu,) = {device for name, device in before if name == "quick"}
    assert after["quick", gpu] > before["quick", gpu]
    assert step(controller, observed(changed, quick=1.4, slow=0.2, calm=0.4)) is None


def test_models_move_where_other_shares_will_not_do() -> None:
    changed = step(made("share-replanning"), observed(FIRST, quick=2.1, slow=0.2, calm=0.3))
    assert changed is not None
    assert percents(changed).keys() != percents(FIRST).keys()
    assert sum(name == "quick" for name, _ in percents(changed)) == 2


def test_what_was_planned_for_is_not_planned_for_again() -> None:
    controller = made("share-replanning")
    first = step(controller, observed(FIRST, quick=1.4, slow=0.2, calm=0.4))
    assert first is not None
    assert step(controller, observed(FIRST, quick=1.4, slow=0.2, calm=0.4)) is first
    assert step(controller, observed(FIRST, quick=1.0, slow=1.0)) is None


def changes_of(controller: Controller, steps: int = 12) -> int:
    """How often shares change under constant rates that no plan sustains, counted in periods of ten seconds."""
    layout, changes, rng = FIRST, 0, Random(1)
    overload = {"quick": 1.6, "slow": 1.5, "calm": 1.5}
    for _ in range(steps):
        chance = {name: rng.gauss(1, (RATES[name] * 10) ** -0.5) for name in overload}
        times = {name: factor * chance[name] for name, factor in overload.items()}
        wanted = step(controller, observed(layout, **times)) or layout
        changes += percents(wanted) != percents(layout)
        layout = wanted
    return changes


def test_shares_do_not_change_to_and_fro_under_constant_overload() -> None:
    assert changes_of(made("share-replanning")) <= 1
    assert changes_of(made("share-replanning", min_gain=0)) >= 3
    assert made("share-replanning").step(observed(FIRST, quick=1.3, slow=0.3, calm=1)) is None, "3 % more"


def test_a_change_for_which_a_gpu_has_no_memory_is_refused() -> None:
    tight = GIVEN.model_copy(
        update={
            "gpus": (GIVEN.gpus[0].model_copy(update={"memory_mib": 1000}),),
            "models": tuple(model.model_copy(update={"memory_mib": 300.0}) for model in GIVEN.models),
        }
    )
    present = layout_of(tight, plan_shares(tight, time_limit_s=1, progress=lambda **_: 0.0))
    controller = make_controller(Plugins.installed().controller("share-replanning"), present, {"problem": tight})
    with pytest.raises(PlanningError, match=r"the current and the new processes take \d+ MiB, and it has 1000"):
        step(controller, observed(present, quick=1.4, slow=0.2, calm=0.4))


@pytest.mark.parametrize("planner", ["inss", "igniter"])
def test_others_may_plan(planner: str) -> None:
    controller = made("share-replanning", planner=planner)
    assert step(controller, observed(FIRST)) is None
    changed = step(controller, observed(FIRST, quick=2.1, slow=0.2, calm=0.3))
    assert changed is not None
    assert percents(changed) != percents(FIRST)


def test_a_planner_that_is_none_is_refused() -> None:
    with pytest.raises(PluginError, match="planner: 'sahres' plans no shares: give one of shares, inss"):
        made("share-replanning", planner="sahres")


def test_the_loop_takes_a_step_at_a_time_and_moves_nobody() -> None:
    controller, layout = made("gslice-loop"), FIRST
    for _ in range(12):
        layout = step(controller, observed(layout, quick=0.5)) or layout
        assert percents(layout).keys() == percents(FIRST).keys()
    before, after = percents(FIRST), percents(layout)
    assert sum(after.values()) < 0.9 * sum(before.values())


@pytest.mark.parametrize("name", ["share-replanning", "gslice-loop"])
def test_another_problem_than_what_serves_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match="'slow' is in one of the two only"):
        made(name, problem=problem(tenant("quick", 1, 20), tenant("calm", 1, 60), gpus=2))
    with pytest.raises(PluginError, match="on V100 1 of 'node0', which is none of its GPUs"):
        made(name, problem=problem(*GIVEN.models, gpus=1))
    whole = FIRST.workers[0].model_copy(update={"slice": WholeDevice()})
    layout = FIRST.model_copy(update={"workers": (whole, *FIRST.workers[1:])})
    with pytest.raises(PluginError, match="is no MPS share with one model"):
        make_controller(Plugins.installed().controller(name), layout, {"problem": GIVEN})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (GIVEN.model_copy(update={"interference": INTERFERENCE.model_copy(update={"gpu": "A100"})}), "not on 'V100'"),
        (problem(*(each.model_copy(update={"slo_ms": 0.1}) for each in GIVEN.models), gpus=2), "its SLO of 0.1 ms"),
        (GIVEN.model_copy(update={"interference": "/nowhere.json"}), "/nowhere.json: No such file"),
    ],
)
def test_what_no_plan_can_mend_is_said_before_anything_starts(wrong: ShareProblem, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        made("share-replanning", problem=wrong)
