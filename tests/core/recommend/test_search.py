"""How the best is found: races, bisection, what is reported."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest

from tidegate.api import PlanningError
from tidegate.host import Plugins
from tidegate.recommend import simulation_runs
from tidegate.recommend.assess import first_enough, least_around, least_count
from tidegate.recommend.hardware import format_gpus, parse_gpus, parse_offer, profiles_on
from tidegate.recommend.simulation_runs import SimulationOutcome, SimulationRun, SimulationRuns
from tidegate.recommend.successive_halving import MAX_SCORE_GAP, successive_halving
from tidegate.schemas import Demand, DemandedModel
from tidegate.sim.interval import interval_of
from tidegate.workload import PolicyChoice, Scenario


@dataclass
class Known(SimulationRuns):
    """What runs would tell: an entrant carries so many times the load."""

    asked: int = 0

    def run(self, label: str, runs: Sequence[SimulationRun]) -> list[SimulationOutcome]:
        """The more it carries, the later it begins to miss."""
        self.asked += len(runs)
        found = []
        for run in cast("list[tuple[float, int, float]]", runs):
            carries, seed, load = run
            if not carries:
                found.append(SimulationOutcome(broken="no"))
                continue
            kept = max(0.0, min(1.0, 1 - (load - carries) + 0.001 * (seed % 3 - 1)))
            found.append(SimulationOutcome(kept, {"m": kept}))
        return found


def race_of(*carried: float) -> tuple[list[float], float, int]:
    simulations = Known()
    found = successive_halving(
        "race", carried, lambda each, seed, load, goal=None: cast("SimulationRun", (each, seed, load)), simulations
    )
    return [standing.entrant for standing in found.standings], found.load, simulations.asked


def test_the_best_wins_by_few_runs() -> None:
    entrants = [0.2 + 0.03 * number for number in range(24)]
    order, load, asked = race_of(*entrants)
    assert order[0] == max(entrants)
    assert load == 1
    assert asked < 3 * len(entrants)


def test_who_is_far_behind_is_stopped_and_not_asked_again() -> None:
    """Those that the heat stops stand last, below what is far behind the best."""
    asked: list[tuple[float, int, float | None]] = []

    def run_of(each: float, seed: int, load: float, goal: float | None = None) -> SimulationRun:
        asked.append((each, seed, goal))
        return cast("SimulationRun", (each, seed, load))

    class Stopping(Known):
        def run(self, label: str, runs: Sequence[SimulationRun]) -> list[SimulationOutcome]:
            found = super().run(label, runs)
            goals = [goal for _, _, goal in asked[-len(found) :]]
            return [
                replace(got, missed=goal is not None and got.worst < goal)
                for got, goal in zip(found, goals, strict=True)
            ]

    slow, near, best = [0.3] * 3, 0.88, 0.95
    found = successive_halving("race", [best, *slow, near, 0.2, 0.93], run_of, Stopping())
    assert [(each.entrant, each.runs) for each in found.standings] == [
        (best, 6), (0.93, 6), (near, 6), (0.3, 1), (0.3, 1), (0.3, 1), (0.2, 0),
    ]  # fmt: skip
    assert found.standings[-1].score == pytest.approx(best - 0.001 - MAX_SCORE_GAP)
    assert {each for each, seed, _ in asked if seed > 0} == {best, 0.93, near}


def test_what_was_run_to_its_end_is_run_for_no_goal_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[float | None] = []

    def simulate(run: SimulationRun) -> SimulationOutcome:
        ran.append(run.goal)
        return SimulationOutcome(0.5, {"m": 0.5}, missed=run.goal is not None and run.goal > 0.5)

    monkeypatch.setattr(simulation_runs, "simulate_run", simulate)
    scenario = Scenario.model_validate(
        {
            "models": [{"name": "m", "slo_ms": 9, "profile": {"alpha_ms": 1, "beta_ms": 1, "max_batch": 2}}],
            "workers": [{"count": 1}],
            "arrivals": {"rate_rps": 1},
            "duration_s": 1,
        }
    )

    def run_of(seed: int, goal: float | None) -> SimulationRun:
        return SimulationRun(scenario, PolicyChoice(name="eager"), seed, goal=goal)

    simulations = SimulationRuns(jobs=1)
    assert simulations.run("", [run_of(0, 0.6)])[0].missed
    assert simulations.run("", [run_of(0, 0.7)])[0].missed  # who misses the lower goal misses the higher one
    assert not simulations.run("", [run_of(0, 0.4)])[0].missed
    simulations.run("", [run_of(0, None), run_of(0, 0.9), run_of(1, None)])
    assert ran == [0.6, 0.4, None]
    assert simulations.count == 3


def test_who_misses_nothing_is_told_apart_under_more_load() -> None:
    order, load, _ = race_of(1.5, 2.5, 2.0, 0.0)
    assert order[:3] == [2.5, 2.0, 1.5]
    assert load > 2.4


def test_ties_are_broken_by_more_load_never_by_listing_order() -> None:
    """Twenty miss nothing of the traffic: the one that sustains most wins wherever it is listed."""
    others = [1.5 + 0.01 * number for number in range(19)]
    for place in (0, 10, 19):
        order, load, asked = race_of(*others[:place], 4.0, *others[place:])
        assert order[0] == 4.0
        assert load > 3.9
        assert asked < 160


@pytest.mark.parametrize("needed", [1, 2, 7, 16, 17])
def test_the_least_that_keeps_the_goal(needed: int) -> None:
    tried: list[int] = []

    def keeps(count: int) -> bool:
        tried.append(count)
        return count >= needed

    assert least_count(keeps, 16) == (needed if needed <= 16 else None)
    assert len(tried) <= 6
    enough = first_enough(lambda count: count >= needed, 16)
    assert enough is None if needed > 16 else enough is not None and needed <= enough < 2 * needed


@pytest.mark.parametrize("start", [1, 7, 16, 20])
@pytest.mark.parametrize("needed", [1, 2, 6, 7, 8, 11, 16, 17])
def test_the_least_is_found_from_where_it_may_be(needed: int, start: int) -> None:
    tried: list[int] = []

    def keeps(count: int) -> bool:
        tried.append(count)
        return count >= needed

    assert least_around(keeps, start, 16) == (needed if needed <= 16 else None)
    assert len(tried) == len(set(tried)) <= 9
    assert 0 < min(tried) <= max(tried) <= 16
    if needed in {start, start + 1} and needed <= 16:
        assert len(tried) <= 2


def test_intervals_hold_the_mean_and_end_where_figures_do() -> None:
    found = interval_of([0.99, 1.0, 0.98, 1.0])
    assert found.low < found.mean < found.high == 1.0
    assert found.mean - found.low == pytest.approx(3.182 * 0.00957 / 2, rel=0.01)


def test_gpus_in_words() -> None:
    assert parse_gpus("2xT4,A100") == ("T4", "T4", "A100")
    assert format_gpus(parse_gpus("A100+3xT4")) == "1xA100,3xT4"
    assert parse_gpus("2xrtx4090,gtx1080+2xMax1100") == ("rtx4090", "rtx4090", "gtx1080", "Max1100", "Max1100")
    assert parse_offer("A100+3xT4=3.5").cost == 3.5
    assert parse_offer("2xT4").cost == 2


def test_profiles_on_gpus_are_those_of_their_parts_too() -> None:
    """So a model that was measured on slices only is not called impossible by another GPU."""
    row = {"alpha_ms": 1, "beta_ms": 1, "max_batch": 1}
    models = [
        {"name": "m", "profiles": {"T4": row, "A100/1g.5gb": row, "A1000": row}},
        {"name": "of any", "profile": row},
    ]
    given = {"duration_s": 1, "workers": [{"count": 1, "gpu": "T4"}], "models": models, "arrivals": {"rate_rps": 1}}
    scenario = Scenario.model_validate(given)
    assert [(each.partition, each.device_class) for each in profiles_on(scenario, ["A100", "T4"])] == [
        ("m", "T4"), ("m", "A100/1g.5gb"), ("of any", "A100"), ("of any", "T4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("planner", "lacking"),
    [("paris", "cannot be cut"), ("ppipe", "tidegate profile-blocks"), ("shares", "tidegate fit-interference")],
)
def test_a_planner_says_what_it_lacks_and_the_remedy(planner: str, lacking: str) -> None:
    model = DemandedModel("m", 50.0, 100.0, 8, {1: 1.0}, {"T4": (10.0,) * 8})
    problem_of = Plugins.installed().planner(planner).problem_of
    assert problem_of is not None
    with pytest.raises(PlanningError, match=lacking):
        problem_of(Demand((model,), {"T4": 2}))


def test_slices_are_planned_for_a_demand_that_knows_them() -> None:
    tables = {"A100-40GB/1g.5gb": (10.0, 20.0), "A100-40GB/7g.40gb": (4.0, 5.0)}
    model = DemandedModel("m", 50.0, 100.0, 2, {1: 0.5, 2: 0.5}, tables)
    spec = Plugins.installed().planner("paris")
    assert spec.problem_of is not None
    problem = spec.problem_of(Demand((model,), {"A100-40GB": 1}))
    plan = spec.run(problem, time_limit_s=1, progress=lambda **_: 0.0)
    assert spec.layout is not None
    layout = spec.layout(problem, plan)
    assert {worker["device"]["product"] for worker in layout.model_dump()["workers"]} == {"A100-40GB"}
