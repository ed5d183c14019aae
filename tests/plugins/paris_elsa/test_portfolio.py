"""The planner tries several plans, and takes the best in simulation: never one below equal slices."""

import pytest

from tests.examples import few
from tests.plugins.paris_elsa.problems import A100, model, problem, sliced, unhurried
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_paris_elsa.layout import layout_of
from tidegate_paris_elsa.plan import MigPlan
from tidegate_paris_elsa.planners import plan_homogeneous, plan_paris
from tidegate_paris_elsa.portfolio import SliceSimulation, buckets
from tidegate_paris_elsa.problem import MigModel, MigProblem
from tidegate_paris_elsa.slices import offers_of

MIXES: tuple[dict[int, float], ...] = (
    {1: 90, 32: 10},
    {1: 5, 2: 8, 4: 9, 8: 7, 16: 3, 32: 1},
    {1: 30, 2: 20, 4: 10, 24: 20, 32: 20},
    {1: 1},
)


def simulated_rps(given: MigProblem, plan: MigPlan, *, seed: int = 7) -> float:
    """What the plan's slices of the first model sustain."""
    offers = offers_of(given)
    numbers = {slice_type.name: number for number, slice_type in enumerate(offers.slice_types)}
    simulation = SliceSimulation(given.models[0], offers.speeds[0], 3000, seed)
    return simulation.sustained_rps({numbers[name]: count for name, count in plan.models[0].slices.items()})


@pytest.mark.parametrize("mix", few(range(len(MIXES)), 2))
def test_no_equal_slices_sustain_more(mix: int) -> None:
    given = problem(model(slo_ms=90, sizes=MIXES[mix]))
    plan = plan_paris(given, time_limit_s=20, progress=unhurried)
    assert plan.method in plan.summary
    assert plan.models[0].rate_rps == pytest.approx(plan.objective, abs=0.001)
    for size in (1, 2, 3, 4, 7):
        equal = plan_homogeneous(given.model_copy(update={"size": size}), time_limit_s=20, progress=unhurried)
        assert simulated_rps(given, plan) >= 0.97 * simulated_rps(given, equal)


def test_what_is_simulated_for_the_plan_is_what_the_simulator_says() -> None:
    given = problem(model(slo_ms=90))
    plan = plan_paris(given, time_limit_s=20, progress=unhurried)
    shares = given.models[0].shares
    rows = {"distribution": "table", "values": list(shares), "weights": list(shares.values())}
    attainment = []
    for times in (0.94, 1.06):
        scenario = Scenario.model_validate(
            {
                "warmup_s": 0.5,
                "duration_s": 12,
                "layout": layout_of(given, plan),
                "models": [{"name": "m", "scheduling": "unbatched", "rows": rows}],
                "arrivals": {"rate_rps": times * plan.objective},
                "simulation": {"learn": False},
            }
        )
        attainment.append(simulate(RunSpec(scenario, PolicyChoice(name="elsa"), 1)).total.attainment)
    assert attainment[0] > 0.95 > attainment[1]


def test_models_are_judged_by_the_worst_and_large_layouts_in_proportion() -> None:
    light, heavy = model("light", {1: 1}, slo_ms=50), model("heavy", {32: 1}, slo_ms=200, weight=0.25)
    both = plan_paris(problem(light, heavy, count=4), time_limit_s=20, progress=unhurried)
    assert [each.rate_rps for each in both.models] == pytest.approx([both.objective, both.objective / 4], abs=0.001)
    given = problem(model(slo_ms=90), count=300)
    slice_types = {slice_type.mig.name: number for number, slice_type in enumerate(offers_of(given).slice_types)}
    simulation = SliceSimulation(given.models[0], offers_of(given).speeds[0], 3000, 1)
    few_rps, many_rps = (
        simulation.sustained_rps({slice_types[A100[2]]: count, slice_types[A100[7]]: count}) for count in (150, 900)
    )
    assert many_rps == pytest.approx(6 * few_rps)


def test_when_the_time_is_over_the_best_so_far_is_taken() -> None:
    def late(**_: float | None) -> float:
        return 99.0

    plan = plan_paris(problem(model(slo_ms=90)), time_limit_s=20, progress=late)
    assert plan.method == "segments by SLO, within 0.8"


def test_a_model_without_an_slo_counts_as_its_plan_says() -> None:
    dated, free = model("dated", slo_ms=90), model("free")
    plan = plan_paris(problem(dated, free, count=4), time_limit_s=20, progress=unhurried)
    assert plan.method
    assert not plan_paris(problem(free), time_limit_s=20, progress=unhurried).method


def test_latencies_that_fall_are_taken_for_measured_with_noise() -> None:
    noisy = sliced(7).model_copy(update={"latency_ms": (8.0, 3.0, 4.3, 6.6, 11.1, 20.3)})
    given = problem(MigModel(name="m", slo_ms=21, sizes={1: 1, 2: 1}, profiles=(noisy,)), count=1)
    offers = offers_of(given)
    simulation = SliceSimulation(given.models[0], offers.speeds[0], 500, 1)
    assert simulation._mean_s == pytest.approx([0.008])


def test_buckets_are_of_about_as_many_sizes() -> None:
    assert buckets([1, 2, 4], 8) == [(1, 1), (2, 2), (4, 4)]
    assert buckets(list(range(1, 10)), 4) == [(1, 2), (3, 4), (5, 6), (7, 9)]
