"""Squishy bin packing, against the numbers of Symphony's table 2 and by its own conditions."""

import random

import pytest

from tidegate.api import Model, Profile, Worker, ms_to_ns
from tidegate_baselines.squishy import Plan, PlanSearch, Profiles, WorkerShare, largest_batch

RESNET = (Model("resnet", 64, ms_to_ns(25)), Profile.linear("resnet", alpha_ms=1.053, beta_ms=5.072, max_rows=64))
INCEPTION = (
    Model("inception", 64, ms_to_ns(70)),
    Profile.linear("inception", alpha_ms=5.090, beta_ms=18.368, max_rows=64),
)


def workers(count: int, *hosts: str) -> list[Worker]:
    return [Worker(number, f"w{number}", hosts) for number in range(count)]


def static_plan(models: list[Model], workers: list[Worker], profiles: Profiles, rates: dict[str, float]) -> Plan:
    at_once = PlanSearch(models, workers, profiles, rates)
    assert at_once.run()
    step_by_step = PlanSearch(models, workers, profiles, rates)
    while not step_by_step.run(1):
        pass
    assert step_by_step.plan == at_once.plan
    return at_once.plan


@pytest.mark.parametrize(("model", "profile", "rows"), [(*RESNET, 7), (*INCEPTION, 3)])
def test_alone_it_is_the_batch_without_coordination_of_table_2(model: Model, profile: Profile, rows: int) -> None:
    assert largest_batch(model, profile) == rows
    plan = static_plan([model], workers(8, model.name), {(model.name, "default"): profile}, {model.name: 1e-6})
    shares = [plan[worker][model.name] for worker in range(8)]
    assert {share.rows for share in shares} == {rows}
    whole = rows / profile.upper_ns(rows)
    assert [share.rows_per_ns for share in shares] == pytest.approx([whole] * 8, rel=0.01)


def test_whoever_is_asked_more_gets_more_workers_and_what_is_left_of_each_shares_one() -> None:
    profiles = {(model.name, "default"): profile for model, profile in (RESNET, INCEPTION)}
    plan = static_plan(
        [RESNET[0], INCEPTION[0]], workers(8, "resnet", "inception"), profiles, {"resnet": 9e-6, "inception": 1e-7}
    )
    hosts = [sorted(plan[worker]) for worker in range(8)]
    assert hosts.count(["resnet"]) == 7
    assert hosts.count(["inception", "resnet"]) + hosts.count(["inception"]) == 1


def test_a_shared_worker_gets_round_within_every_slo() -> None:
    rng = random.Random(1)
    for _ in range(50):
        models = [Model(f"m{index}", 32, ms_to_ns(rng.randint(40, 200))) for index in range(rng.randint(1, 5))]
        profiles = {
            (model.name, "default"): Profile.linear(
                model.name, alpha_ms=rng.uniform(0.1, 1), beta_ms=rng.uniform(0.5, 4), max_rows=32
            )
            for model in models
        }
        rates = {model.name: rng.uniform(1e-9, 1e-7) for model in models}
        plan = static_plan(models, workers(rng.randint(2, 4), *rates), profiles, rates)
        assert {name for shares in plan.values() for name in shares} == set(rates)
        for shares in plan.values():
            if len(shares) > 1:
                cycle_ns = sum(profiles[name, "default"].upper_ns(share.rows) for name, share in shares.items())
                for model in models:
                    share = shares.get(model.name, WorkerShare(0, 0.0))
                    # What arrives during a cycle fits into the next one's batch.
                    assert share.rows + 1 >= share.rows_per_ns * cycle_ns
                    slo_ns = model.slo_ns or 0
                    assert not share.rows or profiles[model.name, "default"].upper_ns(share.rows) <= slo_ns


def test_workers_serve_only_what_they_host() -> None:
    profiles = {(model.name, "default"): profile for model, profile in (RESNET, INCEPTION)}
    some = [Worker(0, "w0", ("resnet",)), Worker(1, "w1", ("inception", "resnet")), Worker(2, "w2", ("inception",))]
    plan = static_plan([RESNET[0], INCEPTION[0]], some, profiles, {"resnet": 1e-6, "inception": 1e-8})
    assert all(name in worker.hosts for worker in some for name in plan.get(worker.id, {}))
    assert "resnet" in plan[0]
    assert {name for shares in plan.values() for name in shares} == {"resnet", "inception"}


def test_where_nothing_fits_everyone_serves_everything() -> None:
    model = Model("m", 8, ms_to_ns(1))
    profile = Profile.linear("m", alpha_ms=1, beta_ms=5, max_rows=8)
    tight = Model("n", 8, ms_to_ns(1))
    profiles = {("m", "default"): profile, ("n", "default"): Profile("n", "default", profile.expected)}
    plan = static_plan([model, tight], workers(1, "m", "n"), profiles, {})
    assert set(plan[0]) == {"m", "n"}


def test_models_without_a_worker_and_workers_without_a_model_are_no_fault() -> None:
    model, profile = RESNET
    assert static_plan([model], [], {}, {}) == {}
    assert static_plan([model], workers(1, "other"), {("resnet", "default"): profile}, {}).get(0, {}) == {}
