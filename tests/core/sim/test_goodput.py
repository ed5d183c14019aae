"""The goodput search, against worlds whose answer is known."""

import pytest

from tests.core.sim.conftest import make_scenario
from tests.examples import few
from tidegate.sim.goodput import GoodputQuery, search_goodput, summarize_searches
from tidegate.sim.run import RunSpec, SimulationError
from tidegate.workload import PolicyChoice, Scenario

ONE_BY_ONE = PolicyChoice(name="fifs", options={"max_rows": 1})


def metronome(rate_rps: float) -> Scenario:
    """Evenly spaced requests of 10 ms on one worker: on time up to 100/s, then all too late."""
    model = {"name": "m", "slo_ms": 12, "profile": {"alpha_ms": 0, "beta_ms": 10, "max_batch": 1}}
    return make_scenario(
        models=[model], workers=[{"count": 1}], arrivals={"process": "uniform", "rate_rps": rate_rps}, duration_s=30
    )


@pytest.mark.parametrize(
    "begun_at_rps",
    few([90, 3, 104, 900]),
)
def test_the_border_is_found_from_wherever_the_search_begins(begun_at_rps: float) -> None:
    question = GoodputQuery(RunSpec(metronome(begun_at_rps), ONE_BY_ONE, 1), tolerance=0.005)
    search = search_goodput(question)
    assert search.bounded
    assert search.rate_rps == pytest.approx(100, rel=0.006)
    assert search.best is not None
    assert search.best.total.worst_bad_rate <= 0.01
    assert max(probe.rate_rps for probe in search.probes if probe.good) == search.rate_rps
    bad = min(probe.rate_rps for probe in search.probes if not probe.good)
    assert search.rate_rps < bad <= 1.006 * search.rate_rps
    assert all(probe.worst_bad_rate is None or probe.good for probe in search.probes)


def test_every_model_counts() -> None:
    """The second model alone cannot meet its SLO: no rate is good, whatever the first one's weight."""
    line = {"alpha_ms": 0, "beta_ms": 10, "max_batch": 1}
    models = [
        {"name": "easy", "slo_ms": 1000, "profile": line, "weight": 9},
        {"name": "impossible", "slo_ms": 9, "profile": line},
    ]
    search = search_goodput(
        GoodputQuery(RunSpec(make_scenario(models=models, arrivals={"rate_rps": 20}), ONE_BY_ONE, 1))
    )
    assert search.rate_rps == 0
    assert search.best is None


def test_a_model_that_gets_no_request_cannot_be_judged() -> None:
    line = {"alpha_ms": 0, "beta_ms": 10, "max_batch": 1}
    models = [
        {"name": "seen", "slo_ms": 90, "profile": line},
        {"name": "rare", "slo_ms": 90, "profile": line, "weight": 1e-9},
    ]
    with pytest.raises(SimulationError, match="no request of model 'rare' falls into the window: lengthen duration_s"):
        search_goodput(GoodputQuery(RunSpec(make_scenario(models=models), ONE_BY_ONE, 1)))
    models[1]["weight"] = 0
    assert search_goodput(GoodputQuery(RunSpec(make_scenario(models=models), ONE_BY_ONE, 1))).rate_rps > 100


def test_what_is_good_at_any_rate_is_said_not_to_be_bounded() -> None:
    model = {"name": "m", "slo_ms": 60_000, "profile": {"alpha_ms": 0, "beta_ms": 1, "max_batch": 64}}
    scenario = make_scenario(models=[model], arrivals={"rate_rps": 5}, duration_s=1)
    search = search_goodput(GoodputQuery(RunSpec(scenario, PolicyChoice(name="fifs"), 1)))
    assert not search.bounded
    assert search.rate_rps > 32 * 5


def test_goodput_needs_something_to_be_late_for() -> None:
    model = {"name": "m", "profile": {"alpha_ms": 0, "beta_ms": 1, "max_batch": 64}}
    with pytest.raises(SimulationError, match="no model of the scenario has an SLO"):
        search_goodput(GoodputQuery(RunSpec(make_scenario(models=[model]), ONE_BY_ONE, 1)))


def test_seeds_are_summarized_by_policy() -> None:
    scenario = metronome(90).model_copy(update={"duration_s": 2.0})
    poisson = scenario.model_copy(update={"arrivals": scenario.arrivals.model_copy(update={"process": "poisson"})})
    batched = PolicyChoice(name="fifs", label="twin")
    questions = [
        GoodputQuery(RunSpec(poisson, policy, seed), limit=0.2, tolerance=0.05)
        for policy in (ONE_BY_ONE, batched)
        for seed in (1, 2, 3)
    ]
    searches = [search_goodput(question) for question in questions]
    first, second = summarize_searches(searches)
    assert (first.policy, second.policy) == ("fifs(max_rows=1)", "twin")
    rates = sorted(search.rate_rps for search in searches[:3])
    assert (first.min_rps, first.median_rps, first.max_rps) == tuple(rates)
    assert first.min_rps < first.max_rps
    assert [search.seed for search in first.searches] == [1, 2, 3]
