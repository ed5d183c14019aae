"""Plans follow the rates: another division of the GPUs where the mix has drifted, and no request is lost by it."""

import io
import json
from pathlib import Path

import pytest

from tests.controllers import step
from tests.plugins.ppipe.problems import profile
from tests.plugins.ticks import Ticks
from tidegate.api import PlanningError
from tidegate.control import ControllerSpec, ModelLoad, Observation
from tidegate.host import PluginError, Plugins, make_controller, make_policy
from tidegate.observation import Recorder, TopologyChanged, read_log
from tidegate.schemas import Layout, write_document
from tidegate.sim.replay import replay
from tidegate.sim.run import RunSpec, simulate
from tidegate.testing import ControllerConformance
from tidegate.workload import PolicyChoice, Scenario
from tidegate_ppipe.layout import layout_of
from tidegate_ppipe.planners import plan_ppipe
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem
from tidegate_ppipe.replanning import Replanning

SPEC = Plugins.installed().controller("ppipe-replanning")
S = 1_000_000_000


def problem(**weights: float) -> PpipeProblem:
    """Two models on six equal GPUs, each GPU with one of them."""
    models = tuple(
        PlannedModel(name=name, slo_ms=100, weight=weight, profile=profile(name, {"gpu": [5000, 5000]}))
        for name, weight in weights.items()
    )
    return PpipeProblem(
        classes=(GpuClass(name="gpu", count=6, max_share=1),), models=models, gbps=10, max_batch=2, whole_margin=0.1
    )


EQUAL = problem(a=1.0, b=1.0)
FIRST = layout_of(EQUAL, plan_ppipe(EQUAL, time_limit_s=10, progress=Ticks()))


class TestReplanning(ControllerConformance):
    """The kit, over a layout of its own problem."""

    spec = ControllerSpec("ppipe-replanning", "Plans pooled pipelines anew when rates drift", Replanning)
    options = {"problem": EQUAL}  # noqa: RUF012
    layout = FIRST
    situations = 2


def observed(
    present: Layout, a_rps: float, b_rps: float, period_s: float = 10, *, away: tuple[str, ...] = (), now_s: int = 1
) -> Observation:
    rates = {"a": a_rps, "b": b_rps}
    loads = {name: ModelLoad(rate, rate, 1, int(rate * period_s), 1.0) for name, rate in rates.items()}
    busy = dict.fromkeys([worker.name for worker in present.workers], 0.5)
    return Observation(now_s * S, round(period_s * S), present, loads, busy, away=frozenset(away))


def gpus(layout: Layout | None) -> tuple[int, int]:
    """How many workers each model has."""
    assert layout is not None
    of = {part.name: part.model for part in layout.partitions}
    models = [of[worker.hosts[0]] for worker in layout.workers]
    return models.count("a"), models.count("b")


def test_it_plans_anew_when_the_mix_has_drifted() -> None:
    controller = make_controller(SPEC, FIRST, {"problem": EQUAL})
    assert gpus(FIRST) == (3, 3)
    assert step(controller, observed(FIRST, 100, 100)) is None
    assert step(controller, observed(FIRST, 100, 110)) is None
    drifted = step(controller, observed(FIRST, 200, 40))
    assert gpus(drifted) == (5, 1)
    assert drifted is not None
    assert step(controller, observed(drifted, 200, 40)) is None  # it is planned for that now
    assert gpus(step(controller, observed(drifted, 120, 120))) == (3, 3)


def test_a_plan_that_was_refused_is_made_again() -> None:
    controller = make_controller(SPEC, FIRST, {"problem": EQUAL})
    assert gpus(step(controller, observed(FIRST, 200, 40))) == (5, 1)
    assert gpus(step(controller, observed(FIRST, 200, 40))) == (5, 1)


CHEAP = PpipeProblem(
    classes=(GpuClass(name="gpu", count=4, max_share=1),),
    models=tuple(
        PlannedModel(name=name, slo_ms=100, rate_rps=rate, profile=profile(name, {"gpu": [5000, 5000]}))
        for name, rate in (("a", 60), ("b", 60))
    ),
    objective="cost",
    gbps=10,
    max_batch=2,
    whole_margin=0.1,
)
SMALL = layout_of(CHEAP, plan_ppipe(CHEAP, time_limit_s=10, progress=Ticks()))


def test_rates_that_all_gpus_cannot_sustain_get_all_of_them() -> None:
    controller = make_controller(SPEC, SMALL, {"problem": CHEAP})
    assert gpus(SMALL) == (1, 1)
    everything = step(controller, observed(SMALL, 900, 300))
    assert gpus(everything) == (3, 1)
    assert everything is not None
    assert step(controller, observed(everything, 900, 300)) is None
    assert gpus(step(controller, observed(everything, 50, 50))) == (1, 1)


def test_lost_gpus_are_planned_without_at_once_and_tried_again_later() -> None:
    controller = make_controller(SPEC, SMALL, {"problem": CHEAP, "lost_gpu_retry_s": 60})
    first = SMALL.workers[0]
    assert step(controller, observed(SMALL, 50, 50)) is None
    moved = step(controller, observed(SMALL, 50, 50, away=(first.name,)))
    assert moved is not None
    assert first.device not in {worker.device for worker in moved.workers}
    assert gpus(moved) == (1, 1)
    assert step(controller, observed(SMALL, 50, 50, away=(first.name,), now_s=2)) is moved, "it was refused meanwhile"
    assert step(controller, observed(moved, 50, 50, now_s=50)) is None
    back = step(controller, observed(moved, 50, 50, now_s=70))
    assert back is not None
    assert first.device in {worker.device for worker in back.workers}
    assert step(controller, observed(SMALL, 50, 50, away=(first.name,), now_s=80)) == moved
    assert step(controller, observed(SMALL, 50, 50, now_s=90)) is None, "the worker came back"


def test_of_all_gpus_that_are_there_models_get_their_parts() -> None:
    controller = make_controller(SPEC, FIRST, {"problem": EQUAL})
    away = tuple(worker.name for worker in FIRST.workers[:2])
    assert sum(gpus(step(controller, observed(FIRST, 100, 100, away=away)))) == 4
    everything = tuple(worker.name for worker in FIRST.workers)
    with pytest.raises(PlanningError, match="the workers of all 6 GPUs are away"):
        step(controller, observed(FIRST, 100, 100, away=everything))


def test_chance_is_no_drift() -> None:
    controller = make_controller(SPEC, FIRST, {"problem": EQUAL})
    assert step(controller, observed(FIRST, 1.5, 0.5, period_s=4)) is None
    assert step(controller, observed(FIRST, 0, 0)) is None
    assert step(controller, observed(FIRST, 1.5, 0.5, period_s=400)) is not None


def test_a_model_that_nobody_asks_for_stays_served() -> None:
    controller = make_controller(SPEC, FIRST, {"problem": EQUAL})
    assert gpus(step(controller, observed(FIRST, 200, 0))) == (5, 1)


def test_a_missing_profile_of_the_problem_is_refused_at_the_start(tmp_path: Path) -> None:
    """Otherwise the controller would serve, and fail each time that the rates have drifted."""
    document = EQUAL.model_dump(mode="json")
    for model in document["models"]:
        model["profile"] = f"{model['name']}.json"
    (tmp_path / "problem.json").write_text(json.dumps(document))
    options = {"problem": "problem.json"}
    write_document(tmp_path / "a.json", EQUAL.models[0].blocks)
    with pytest.raises(PluginError, match=rf"problem: {tmp_path}/b\.json: No such file"):
        make_controller(SPEC, FIRST, options, folder=tmp_path)
    write_document(tmp_path / "b.json", EQUAL.models[1].blocks)
    make_controller(SPEC, FIRST, options, folder=tmp_path)


def test_a_problem_of_other_models_is_refused(tmp_path: Path) -> None:
    write_document(tmp_path / "problem.json", problem(a=1.0, c=1.0))
    with pytest.raises(PluginError, match="its models are not those that are served: 'b' is in one of"):
        make_controller(SPEC, FIRST, {"problem": str(tmp_path / "problem.json")})
    with pytest.raises(PluginError, match=r"gone\.json"):
        make_controller(SPEC, FIRST, {"problem": str(tmp_path / "gone.json")})


def scenario(*, controlled: bool) -> Scenario:
    given = {
        "warmup_s": 0,
        "duration_s": 30,
        "layout": FIRST.model_dump(mode="json"),
        "models": [{"name": "a", "weight": 5}, {"name": "b", "weight": 1}],
        "arrivals": {"rate_rps": 420},
        "simulation": {"startup": {"time_s": 2}},
    }
    if controlled:
        given["controller"] = {"name": "ppipe-replanning", "interval_s": 5, "options": {"problem": EQUAL}}
    return Scenario.model_validate(given)


@pytest.mark.slow
def test_a_plan_for_another_mix_is_mended_while_it_serves_and_the_run_is_replayed() -> None:
    """Six GPUs bear about 750 requests/s; planned for equal rates, three of them get 350 requests/s of one model."""
    ppipe = PolicyChoice(name="ppipe")
    log = io.BytesIO()
    mended = simulate(RunSpec(scenario(controlled=True), ppipe, 1), observers=[Recorder(log)])
    fixed = simulate(RunSpec(scenario(controlled=False), ppipe, 1))
    assert [(its.at_s, its.state) for its in mended.changes][:2] == [(5, "starting"), (7, "switched")]
    assert mended.total.failed == mended.total.stranded == 0
    assert mended.total.bad_rate < 0.5 * fixed.total.bad_rate
    lines = log.getvalue().splitlines()
    header, entries = read_log(lines)
    policy = make_policy(Plugins.installed().policy("ppipe"), header.setup, header.options)
    assert replay(header, entries, policy).difference is None
    assert any(isinstance(entry.event, TopologyChanged) for entry in read_log(lines)[1])
