"""Slices follow the sizes of requests: another plan where they drift, carried out wave by wave."""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.plugins.paris_elsa import problems
from tests.plugins.paris_elsa.problems import unhurried
from tidegate.control import ControllerSpec, LayoutSteps, ModelLoad, Observation
from tidegate.control.capacity import capacities
from tidegate.host import Plugins, make_controller
from tidegate.observation import ChangeProgressed, Recorder, read_log
from tidegate.schemas import Layout, Mig
from tidegate.sim.run import RunSpec, simulate
from tidegate.testing import ControllerConformance
from tidegate.workload import PolicyChoice, RequestSequence, Scenario, draw_requests
from tidegate_paris_elsa.layout import layout_of
from tidegate_paris_elsa.planners import plan_paris
from tidegate_paris_elsa.problem import MigProblem
from tidegate_paris_elsa.replanning import RecentSizes, Replanning, distance

SPEC = Plugins.installed().controller("paris-replanning")
S = 1_000_000_000
SMALL: dict[int, float] = {1: 80, 2: 15, 4: 4, 32: 1}
LARGE: dict[int, float] = {1: 1, 8: 19, 16: 40, 32: 40}
SLO_MS = 45.0


def problem_of(sizes: Mapping[int, float], count: int = 3) -> MigProblem:
    return problems.problem(problems.model(sizes=dict(sizes), slo_ms=SLO_MS), count=count)


def planned(problem: MigProblem) -> Layout:
    return layout_of(problem, plan_paris(problem, time_limit_s=10, progress=unhurried))


FIRST = planned(problem_of(SMALL))


class TestReplanning(ControllerConformance):
    """The kit, over a layout of its own problem."""

    spec = ControllerSpec("paris-replanning", "Plans MIG slices again when the sizes of requests change", Replanning)
    options = {"problem": problem_of(SMALL)}  # noqa: RUF012
    layout = FIRST
    situations = 2


def observed(present: Layout, sizes: Mapping[int, float], *, requests: int = 1000, now_s: int = 10) -> Observation:
    """Ten seconds in which so many requests ended, in these shares."""
    total = sum(sizes.values())
    counts = {rows: round(requests * share / total) for rows, share in sizes.items()}
    rate_rps = requests / 10
    load = ModelLoad(rate_rps, 8 * rate_rps, max(counts), requests, 1.0, counts)
    busy = dict.fromkeys([worker.name for worker in present.workers], 0.5)
    return Observation(now_s * S, 10 * S, present, {"m": load}, busy)


def controller(**options: object) -> Replanning:
    made = make_controller(SPEC, FIRST, {"problem": problem_of(SMALL), "load_s": 10, **options})
    assert isinstance(made, Replanning)
    return made


def slices(layout: Layout) -> Counter[str]:
    return Counter(worker.slice.profile for worker in layout.workers if isinstance(worker.slice, Mig))


def test_sizes_as_planned_change_nothing() -> None:
    mine = controller()
    assert [mine.step(observed(FIRST, SMALL, now_s=10 * each)) for each in range(1, 5)] == [None] * 4


def test_few_requests_prove_nothing() -> None:
    assert controller().step(observed(FIRST, LARGE, requests=100)) is None


def test_larger_requests_get_larger_slices_in_steps_that_are_all_legal() -> None:
    change = controller().step(observed(FIRST, LARGE))
    assert isinstance(change, LayoutSteps)
    assert change.gain > 0.1
    target = change.layouts[-1]
    assert slices(target) == slices(planned(problem_of(LARGE)))
    assert slices(target) != slices(FIRST)
    least = min(capacities(each)["m"] for each in (FIRST, target))
    before = FIRST
    for layout in change.layouts:
        Layout.model_validate_json(layout.model_dump_json())
        new = {(worker.device, worker.slice) for worker in layout.workers} - {
            (worker.device, worker.slice) for worker in before.workers
        }
        beside = [worker for worker in layout.workers if (worker.device, worker.slice) in new]
        together = before.model_copy(update={"workers": (*before.workers, *beside), "partitions": layout.partitions})
        Layout.model_validate_json(together.model_dump_json())  # new instances fit in beside those that serve
        assert capacities(layout)["m"] >= 0.4 * least
        before = layout


def test_the_same_answer_is_given_until_it_serves_and_nothing_after_that() -> None:
    mine = controller()
    first, second = (mine.step(observed(FIRST, LARGE, now_s=now_s)) for now_s in (10, 20))
    assert isinstance(first, LayoutSteps)
    assert first == second
    target = first.layouts[-1]
    assert [mine.step(observed(target, LARGE, now_s=each)) for each in (30, 40)] == [None, None]
    back = mine.step(observed(target, SMALL, now_s=50))
    assert isinstance(back, LayoutSteps)
    assert slices(back.layouts[-1]) == slices(FIRST)


def test_a_change_that_stopped_half_way_goes_on_from_there() -> None:
    mine = controller()
    first = mine.step(observed(FIRST, LARGE))
    assert isinstance(first, LayoutSteps)
    assert len(first.layouts) > 1
    again = mine.step(observed(first.layouts[0], LARGE, now_s=20))
    assert isinstance(again, LayoutSteps)
    assert slices(again.layouts[-1]) == slices(first.layouts[-1])


def test_nothing_is_planned_while_workers_are_away() -> None:
    assert controller().step(replace(observed(FIRST, LARGE), away=frozenset({FIRST.workers[0].name}))) is None


def test_a_sudden_change_of_sizes_forgets_the_old_ones() -> None:
    sizes = RecentSizes(60)
    for _ in range(5):
        sizes.add({1: 500, 2: 500}, 10)
    sizes.add({1: 480, 2: 520}, 10)
    assert sizes.requests > 2000
    sizes.add({32: 1000}, 10)
    assert sizes.shares == {32: 1.0}


def test_distance_is_that_of_cumulative_distributions() -> None:
    assert distance({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5}) == 0
    assert distance({1: 1.0}, {32: 1.0}) == 1
    assert distance({1: 0.5, 2: 0.5}, {1: 0.4, 2: 0.6}) == pytest.approx(0.1)


# In simulation --------------------------------------------------------------------------------------------------------

DRIFTS_AT_S, DURATION_S = 40, 160


def scenario(layout: Layout, sizes: Mapping[int, float], **changes: object) -> Scenario:
    rows = {"distribution": "table", "values": [*sizes], "weights": [*sizes.values()]}
    return Scenario.model_validate(
        {
            "warmup_s": 0,
            "duration_s": DURATION_S,
            "layout": layout,
            "models": [{"name": "m", "scheduling": "unbatched", "rows": rows}],
            "arrivals": {"rate_rps": 150},
            "simulation": {"learn": False, "startup": {"time_s": 10}},
            **changes,
        }
    )


def drifting() -> RequestSequence:
    """Requests that are small first and large from some instant on."""
    small, large = (draw_requests(scenario(FIRST, sizes), 1) for sizes in (SMALL, LARGE))
    assert small.rows is not None
    assert large.rows is not None
    place = next(number for number, at_ns in enumerate(small.at_ns) if at_ns >= DRIFTS_AT_S * S)
    return replace(small, rows=small.rows[:place] + large.rows[place:])


def test_slices_that_follow_the_sizes_answer_more_requests_on_time() -> None:
    chosen = {
        "name": "paris-replanning",
        "interval_s": 5,
        "cooldown_s": 0,
        "options": {"problem": problem_of(SMALL).model_dump(mode="json"), "load_s": 5, "keep": 0.4},
    }
    requests = drifting()
    elsa = PolicyChoice(name="elsa", options={"allow_batching": False})
    rates, states = [], []
    for changes in ({}, {"controller": chosen}):
        log = io.BytesIO()
        spec = RunSpec(scenario(FIRST, SMALL, **changes), elsa, 1)
        rates.append(simulate(spec, requests=requests, observers=[Recorder(log)]).total.attainment)
        log.seek(0)
        states = [entry.event.state for entry in read_log(log)[1] if isinstance(entry.event, ChangeProgressed)]
    assert states.count("done") > 1, "in steps"
    assert not {"undone", "refused"} & set(states)
    assert rates[1] > rates[0] + 0.1
