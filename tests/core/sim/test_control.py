"""A controller under virtual time: workers come up, the layout switches, the old ones drain, and nothing is lost."""

import io
from typing import Any, ClassVar

import pytest

from tests.core.sim.conftest import make_scenario
from tidegate.api import PolicySpec, RequestArrived, StageFinished, WorkerJoined, WorkerLost, hookimpl
from tidegate.control import Controller, ControllerOptions, ControllerSpec, Observation
from tidegate.host import Plugins, make_policy
from tidegate.observation import ChangeProgressed, Recorder, StartStage, TopologyChanged, read_log
from tidegate.schemas import Layout
from tidegate.sim.document import simulate_document
from tidegate.sim.replay import replay
from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, simulate
from tidegate.toolkit import FirstComeFirstServed
from tidegate.workload import PolicyChoice, Scenario, layout_of

FIFS = PolicyChoice(name="fifs")
S = 1_000_000_000
RESNET = {"name": "resnet", "slo_ms": 200, "profile": {"alpha_ms": 2, "beta_ms": 18, "max_batch": 4}}
"""Four rows in 26 ms: 154 rows/s."""
WORLD: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 20,
    "models": [RESNET],
    "arrivals": {"process": "uniform", "rate_rps": 200},
    "policies": [{"name": "fifs"}],
}


class Resizing(Controller):
    """Wants so many workers when it is asked for the first time, the second, ..."""

    wants: ClassVar[list[int]] = []

    def __init__(self, layout: Layout, options: ControllerOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        self._left = list(self.wants)
        self.seen: list[Observation] = []

    def step(self, observation: Observation) -> Layout | None:
        self.seen.append(observation)
        if not self._left:
            return None
        count, first = self._left.pop(0), self.first_layout.workers[0]
        known = {worker.name: worker for worker in self.first_layout.workers}
        workers = []
        for number in range(count):
            name = f"node0/A100-{number}"
            device = type(first.device)(first.device.node, number, first.device.product)
            workers.append(known.get(name) or first.model_copy(update={"name": name, "device": device}))
        return self.first_layout.model_copy(update={"workers": tuple(workers)})


def plugins(*wants: int) -> Plugins:
    made = type("Made", (Resizing,), {"wants": list(wants)})

    class Plugin:
        @hookimpl
        def tidegate_policies(self) -> list[PolicySpec]:
            return [PolicySpec("fifs", "first come, first served", FirstComeFirstServed)]

        @hookimpl
        def tidegate_controllers(self) -> list[ControllerSpec]:
            return [ControllerSpec("resizing", "as a test wants it", made)]

    installed = Plugins()
    installed.register(Plugin(), "test")
    return installed


def run(scenario: Scenario, *wants: int, **options: Any) -> RunResult:
    return simulate(RunSpec(scenario, FIFS, 1), plugins=plugins(*wants), **options)


def world(workers: int, **changes: Any) -> Scenario:
    controller = {
        "name": "resizing",
        "interval_s": 5,
        "cooldown_s": 0,
        "startup_timeout_s": 4,
        **changes.pop("controller", {}),
    }
    given = {**WORLD, "workers": [{"count": workers, "gpu": "A100"}], "controller": controller}
    return make_scenario(**{**given, **changes})


def told(result: RunResult) -> list[tuple[float, str]]:
    return [(change.at_s, change.state) for change in result.changes]


def test_a_worker_joins_after_its_start_up_time_and_bears_the_load() -> None:
    scenario = world(1)
    alone = make_scenario(**{**WORLD, "workers": [{"count": 1, "gpu": "A100"}]})
    before = simulate(RunSpec(alone, FIFS, 1), plugins=plugins())
    result = run(scenario, 2)
    assert told(result) == [(5, "starting"), (8, "switched"), (8, "done")]
    assert result.changes[0].starts == ("node0/A100-1",)
    assert result.total.attainment > before.total.attainment + 0.2
    assert result.total.failed == result.total.stranded == 0
    assert list(result.total.busy_shares) == ["node0/A100-0", "node0/A100-1"]
    assert result.total.busy_shares["node0/A100-1"] > 0.3
    assert result.total.mean_workers == result.total.mean_gpus == pytest.approx((8 + 2 * 12) / 20)


def test_a_worker_leaves_when_it_has_drained_and_no_request_is_lost() -> None:
    log = io.BytesIO()
    result = run(world(3), 2, observers=[Recorder(log)])
    states = told(result)
    assert [state for _, state in states] == ["starting", "switched", "done"]
    assert states[1][0] == 5
    assert 5 < states[2][0] < 5.1, "it ran a batch"
    assert (result.total.attainment, result.total.accepted) == (1, 4000)
    _, entries = read_log(log.getvalue().splitlines())
    switched, drained = False, False
    for entry in entries:
        switched = switched or isinstance(entry.event, TopologyChanged)
        drained = drained or (isinstance(entry.event, ChangeProgressed) and entry.event.state == "done")
        for effect in entry.effects:
            if isinstance(effect, StartStage) and switched:
                assert effect.batch.stages[effect.stage].worker_id != 2, "it was given more"
        if isinstance(entry.event, StageFinished) and entry.event.worker_id == 2:
            assert not drained
    assert drained


def test_a_change_is_undone_when_new_workers_never_come_up() -> None:
    scenario = world(2, simulation={"startup": {"fails": 1}})
    result = run(scenario, 4)
    assert told(result) == [(5, "starting"), (9, "undone")]
    assert result.changes[-1].reason == "not up within 4 s: node0/A100-2, node0/A100-3"
    assert result.total.attainment == 1
    assert result.total.mean_workers == 2


def test_start_up_times_are_drawn_for_each_worker() -> None:
    startup = {"time_s": {"distribution": "table", "values": [1, 3.5]}}
    result = run(world(2, simulation={"startup": startup}), 12)
    assert told(result)[1] == (8.5, "switched")  # the slowest of ten


def test_a_recorded_run_with_changes_is_replayed() -> None:
    log = io.BytesIO()
    run(world(1), 3, 2, observers=[Recorder(log)])
    lines = log.getvalue().splitlines()
    header, entries = read_log(lines)
    spec = plugins().policy("fifs")
    replayed = replay(header, entries, make_policy(spec, header.setup, header.options))
    assert replayed.difference is None
    states = [entry.event.state for entry in read_log(lines)[1] if isinstance(entry.event, ChangeProgressed)]
    assert states == ["starting", "switched", "done"] * 2


def test_two_runs_are_the_same_byte_for_byte() -> None:
    scenario = world(2, simulation={"startup": {"fails": 0.3}, "jitter": {"cv": 0.2}})
    first, second = (simulate_document(scenario, [run(scenario, 4, 3, 5)]) for _ in range(2))
    assert first == second
    assert first["changes"]


def test_a_dry_run_says_what_it_would_do_and_changes_nothing() -> None:
    dry = run(world(2, controller={"dry_run": True}), 1, 3)
    still = run(world(2))
    assert [(its.at_s, its.state, its.starts, its.stops) for its in dry.changes] == [
        (5, "refused", (), ("node0/A100-1",)),
        (10, "proposed", ("node0/A100-2",), ()),
    ]
    assert "would not sustain" in dry.changes[0].reason
    assert dry.rows == still.rows


def test_a_worker_that_was_lost_does_not_come_back_with_a_change() -> None:
    events = [{"at_s": 2, "lost": 0}, {"at_s": 12, "joined": 0}]
    log = io.BytesIO()
    result = run(world(3, simulation={"events": events}), 4, observers=[Recorder(log)])
    assert ("switched" in {state for _, state in told(result)}) is True
    away = False
    for entry in read_log(log.getvalue().splitlines())[1]:
        if isinstance(entry.event, WorkerLost):
            away = True
        if isinstance(entry.event, WorkerJoined):
            away = False
        used = {effect.batch.stages[0].worker_id for effect in entry.effects if isinstance(effect, StartStage)}
        assert not (away and 0 in used)


def test_a_worker_that_comes_back_and_is_not_wanted_any_more_is_given_nothing() -> None:
    events = [{"at_s": 2, "lost": 2}, {"at_s": 12, "joined": 2}]
    log = io.BytesIO()
    run(world(3, simulation={"events": events}), 2, observers=[Recorder(log)])
    after = [
        effect
        for entry in read_log(log.getvalue().splitlines())[1]
        if entry.event.now_ns > 12 * S
        for effect in entry.effects
        if isinstance(effect, StartStage) and effect.batch.stages[0].worker_id == 2
    ]
    assert after == []


def test_what_a_controller_is_told_is_what_came() -> None:
    seen: list[Observation] = []

    class Looking(Resizing):
        def step(self, observation: Observation) -> None:
            seen.append(observation)

    class Plugin:
        @hookimpl
        def tidegate_controllers(self) -> list[ControllerSpec]:
            return [ControllerSpec("resizing", "looks", Looking)]

        @hookimpl
        def tidegate_policies(self) -> list[PolicySpec]:
            return [PolicySpec("fifs", "first come, first served", FirstComeFirstServed)]

    installed = Plugins()
    installed.register(Plugin(), "test")
    log = io.BytesIO()
    simulate(RunSpec(world(2), FIFS, 1), plugins=installed, observers=[Recorder(log)])
    assert [its.now_ns / S for its in seen] == [5, 10, 15]
    entries = read_log(log.getvalue().splitlines())[1]
    arrivals = [entry.event.now_ns for entry in entries if isinstance(entry.event, RequestArrived)]
    for its in seen:
        came = sum(its.now_ns - its.period_ns < at_ns <= its.now_ns for at_ns in arrivals)
        assert its.models["resnet"].rate_rps * 5 == pytest.approx(came, abs=1)
        assert its.attainment == 1
        assert 0.5 < its.load < 1


def test_without_a_controller_nothing_is_different() -> None:
    plain = make_scenario(**{**WORLD, "workers": [{"count": 2, "gpu": "A100"}]})
    without, idle = simulate(RunSpec(plain, FIFS, 1), plugins=plugins()), run(world(2))
    assert without.rows == idle.rows
    assert layout_of(plain) == layout_of(world(2))


@pytest.mark.parametrize("name", sorted(Plugins.installed().policies))
def test_no_policy_loses_a_request_while_workers_come_and_go(name: str) -> None:
    """Under more than the workers bear at times, with every violated invariant raised."""
    installed = Plugins.installed()
    installed.register(_Offering(type("Made", (Resizing,), {"wants": [4, 1, 3, 2, 5, 1]})), "test")
    models = [
        {**RESNET, "on_deadline_miss": "serve"},
        {"name": "bert", "profile": {"alpha_ms": 2, "beta_ms": 4, "max_batch": 8}},
    ]
    controller = {"interval_s": 0.5, "min_improvement": 0, "max_miss_rate": 0}
    simulation = {"startup": {"time_s": {"distribution": "lognormal", "mean": 0.3, "cv": 1}}, "jitter": {"cv": 0.3}}
    scenario = world(
        2,
        models=models,
        duration_s=6,
        arrivals={"rate_rps": [{"from_s": 0, "rate_rps": 50}, {"from_s": 3, "rate_rps": 150}]},
        controller=controller,
        simulation=simulation,
    )
    result = simulate(RunSpec(scenario, PolicyChoice(name=name), 1), plugins=installed)
    assert [state for _, state in told(result)].count("done") >= 3
    assert result.total.failed == result.total.stranded == 0


class _Offering:
    """A plugin with one controller."""

    def __init__(self, controller: type[Controller]) -> None:
        self._controller = controller

    @hookimpl
    def tidegate_controllers(self) -> list[ControllerSpec]:
        return [ControllerSpec("resizing", "as a test wants it", self._controller)]


class Beside(Controller):
    """Wants one more worker, on the GPU that there is."""

    def step(self, observation: Observation) -> Layout:
        first = self.first_layout.workers[0]
        other = first.model_copy(update={"name": "beside"})
        return self.first_layout.model_copy(update={"workers": (first, other)})


def test_a_worker_that_joins_on_a_gpu_slows_down_what_runs_there() -> None:
    installed = Plugins.installed()
    installed.register(_Offering(Beside), "test")
    slow = {"interference": 2, "startup": {"time_s": 0.0071}}
    alone, both = (
        simulate(RunSpec(world(1, simulation=its), FIFS, 1), plugins=installed)
        for its in ({"startup": slow["startup"]}, slow)
    )
    assert [state for _, state in told(both)] == ["starting", "switched", "done"]
    assert both.total.mean_gpus == 1
    assert both.total.goodput_rps < 0.8 * alone.total.goodput_rps
