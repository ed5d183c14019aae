"""The baselines in virtual time: the contract with options that are not the defaults, and how much load they carry."""

import random
from typing import Any

import pytest

from tests.examples import examples
from tidegate.api import Model, Profile, Request, RequestArrived, Setup, Worker, ms_to_ns
from tidegate.engine import Engine, OutcomeCounts
from tidegate.host import Plugins
from tidegate.sim import Simulation
from tidegate.sim.run import RunSpec
from tidegate.sim.run import simulate as simulate_run
from tidegate.testing import check_policy
from tidegate.workload import Poisson, PolicyChoice, Scenario

PLUGINS = Plugins.installed()
RESNET = Model("resnet50", 64, ms_to_ns(25)), Profile.linear("resnet50", alpha_ms=1.053, beta_ms=5.072, max_rows=64)
INCEPTION = Model("incep", 64, ms_to_ns(70)), Profile.linear("incep", alpha_ms=5.090, beta_ms=18.368, max_rows=64)
Options = dict[str, Any]


def simulate(name: str, of: tuple[Model, Profile], rate_rps: float, options: Options | None = None) -> OutcomeCounts:
    """Poisson arrivals for forty times the SLO, on eight workers."""
    model, profile = of
    slo_ns = model.slo_ns or 0
    setup = Setup((model,), tuple(Worker(number, f"gpu{number}", (model.name,)) for number in range(8)), (profile,))
    engine = Engine(PLUGINS.make_policy(name, setup, options or {}), name=name, strict=True, learn=False)
    simulation = Simulation(engine)
    instants = Poisson(rate_rps).instants_ns(40 * slo_ns, random.Random(1))
    simulation.schedule(
        RequestArrived(at, Request(number, model.name, 1, at, at + slo_ns)) for number, at in enumerate(instants)
    )
    simulation.run()
    return engine.tally


def bad_share(tally: OutcomeCounts) -> float:
    return (tally.late + tally.failed + tally.dropped.total()) / tally.accepted


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("eager", {"batch_formation": "skip_head"}),
        ("timeout", {"timeout_ms": 0, "slo_share": 0.3, "batch_formation": "skip_head"}),
        ("nexus", {"frontends": 3, "drop": "hopeless", "observe_ms": 20}),
        ("shepherd", {"preempt_ratio": 1.1}),
        ("shepherd", {"reproduce_published_bug": True}),
        ("triton", {"preferred_batch_size": [2, 4], "max_queue_delay_ms": 5}),
        ("triton", {"default_timeout_ms": 10, "max_queue_size": 5, "preferred_batch_size": [3]}),
        ("triton", {"default_timeout_ms": 10, "timeout_action": "delay", "allow_timeout_override": True}),
        ("triton", {"begin_ms": 1, "queue_order": "fewest"}),
        ("triton", {"begin_ms": 1, "preferred_batch_size": [2, 4], "max_queue_delay_ms": 5}),
        ("triton", {"begin_ms": 1, "default_timeout_ms": 10, "max_queue_size": 5}),
    ],
)
def test_the_contract_is_kept_with_other_options(name: str, options: Options) -> None:
    check_policy(PLUGINS.policy(name), worlds=examples(0.1), options=options)


@pytest.mark.parametrize(
    ("name", "options", "of", "carried_rps", "too_much_rps"),
    [
        # Measured in full length (README): 5082, 860; 5147; 3679; 4197, 579; 5052, 847.
        ("eager", {}, RESNET, 4859, 5600),
        pytest.param("eager", {}, INCEPTION, 750, 1000, marks=pytest.mark.slow),
        ("eager", {"batch_formation": "skip_head"}, RESNET, 4859, 5600),
        ("clockwork", {}, RESNET, 3300, 4500),
        ("nexus", {}, RESNET, 3900, 4800),
        pytest.param("nexus", {}, INCEPTION, 480, 760, marks=pytest.mark.slow),
        ("shepherd", {}, RESNET, 4675, 5600),
        pytest.param("shepherd", {}, INCEPTION, 750, 1000, marks=pytest.mark.slow),
    ],
)
def test_how_much_load_eight_workers_carry(
    name: str, options: Options, of: tuple[Model, Profile], carried_rps: float, too_much_rps: float
) -> None:
    tally = simulate(name, of, carried_rps, options)
    assert bad_share(tally) <= 0.01
    assert tally.late == tally.failed == 0
    assert bad_share(simulate(name, of, too_much_rps, options)) > 0.01


def test_a_timeout_is_eager_when_it_is_nothing_and_starves_when_it_is_too_long() -> None:
    assert simulate("timeout", RESNET, 4000, {"timeout_ms": 0}) == simulate("eager", RESNET, 4000)
    assert bad_share(simulate("timeout", RESNET, 4000, {"timeout_ms": 20})) > 0.5


def test_frontends_that_do_not_know_of_each_other_carry_less() -> None:
    assert bad_share(simulate("nexus", INCEPTION, 560, {"frontends": 8})) > bad_share(simulate("nexus", INCEPTION, 560))


def test_nexus_bears_times_that_vary_as_its_authors_had_it() -> None:
    """It plans with the mean and a standard deviation; with the 99th percentile it lost one request in twenty."""
    profile = {"alpha_ms": 1.053, "beta_ms": 5.072, "max_batch": 64}
    scenario = Scenario.model_validate(
        {
            "warmup_s": 2,
            "duration_s": 2,
            "workers": [{"count": 8}],
            "models": [{"name": "resnet50", "slo_ms": 25, "profile": profile}],
            "arrivals": {"process": "poisson", "rate_rps": 3600},
            "simulation": {"jitter": {"cv": 0.1}},
        }
    )
    assert simulate_run(RunSpec(scenario, PolicyChoice(name="nexus"), 1)).total.attainment > 0.99


@pytest.mark.slow
def test_the_slip_in_the_published_shepherd_stalls_it_under_overload() -> None:
    mended = simulate("shepherd", RESNET, 5800)
    assert simulate("shepherd", RESNET, 5800, {"reproduce_published_bug": True}).answered < 0.8 * mended.answered


def test_tritons_batcher_without_a_delay_serves_whoever_came_first() -> None:
    assert simulate("triton", RESNET, 3000) == simulate("fifs", RESNET, 3000)
