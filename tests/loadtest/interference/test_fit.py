"""What is fitted to runs of a GPU whose truth is known comes near that truth; what cannot be fitted is named."""

from dataclasses import replace

import pytest

from tests.loadtest.interference.synthetic import BATCHES, NOISE, SHARES, co_runs, few_of_each, solo_runs, truth_ms
from tidegate.schemas import Tenant
from tidegate_loadtest.interference.fit import (
    constant_factors,
    fit,
    fit_alone,
    learn_uses,
    transfers,
    unseen_models,
    with_compute,
)
from tidegate_loadtest.interference.held_out import (
    by_constant,
    by_model,
    by_nothing,
    errors_alone,
    errors_by_model,
    split,
)
from tidegate_loadtest.interference.runs import CoRun, RunsError

FEW_BATCHES, FEW_SHARES = (1, 4, 16, 32), (20, 40, 60, 80)
"""The sixteen solo runs of each model that InSS asks for."""


@pytest.mark.parametrize("seed", range(5))
def test_runs_that_were_held_out_are_foretold_within_their_noise(seed: int) -> None:
    """The mean error of a normal distribution is 0.8 of its deviation: twice that is what is left to fit."""
    solo = [run for run in solo_runs(seed) if run.rows in FEW_BATCHES and run.percent in FEW_SHARES]
    fitted, held = split(co_runs(seed, 100), 0.3, seed)
    model = fit(solo, fitted, "V100")
    errors = errors_by_model(by_model(model), held)
    assert errors[""].runs == 60
    assert errors[""].mean < 1.6 * NOISE
    assert errors[""].p95 < 5 * NOISE
    control = errors_by_model(by_constant(model, constant_factors(model, fitted)), held)
    none = errors_by_model(by_nothing(model), held)
    assert errors[""].mean < control[""].mean < none[""].mean


def test_what_was_seen_in_pairs_foretells_three(seed: int = 3) -> None:
    model = fit(solo_runs(seed), co_runs(seed, 100), "V100")
    errors = errors_by_model(by_model(model), co_runs(seed + 1, 100, tenants=3))
    assert errors[""].mean < 2 * NOISE


@pytest.mark.parametrize("seed", range(5))
def test_three_co_runs_of_each_are_enough_not_to_go_astray(seed: int) -> None:
    """With plain least squares they are not: coefficients of either sign, which cancel out in those three only."""
    everything = co_runs(seed, 100)
    few = few_of_each(everything, 3, seed)
    assert len(few) <= 9
    model = fit(solo_runs(seed), few, "V100")
    errors = errors_by_model(by_model(model), [run for run in everything if run not in few])
    assert errors[""].mean < 5 * NOISE
    assert all(min(each.sensitivity.model_dump().values()) >= 0 for each in model.models.values())


def test_batches_and_shares_that_never_ran_alone_are_foretold() -> None:
    solo = solo_runs(0)
    few = [run for run in solo if run.rows in FEW_BATCHES and run.percent in FEW_SHARES]
    model = fit_alone(few, "V100", transfers(few))
    others = errors_alone(model, [run for run in solo if run not in few])
    assert others[""].runs == 3 * (len(BATCHES) * len(SHARES) - 16)
    assert others[""].mean < 1.6 * NOISE
    for name in model.models:
        middle = Tenant(name, 8, 50)
        assert model.alone(middle).taken_ms == pytest.approx(truth_ms(middle, ()), rel=0.04)


def test_the_bus_is_told_from_computing() -> None:
    assert transfers(solo_runs(0))["light"].at(32) == pytest.approx(0.05 * 32, rel=0.02)
    untold = [replace(run, gpu_ms=None) for run in solo_runs(0)]
    assert transfers(untold) == {}
    grid = {("light", rows, 50.0): rows * 0.25 for rows in (1, 16, 32)}
    told = with_compute([run for run in untold if run.rows > 8], grid)
    assert [(run.rows, run.gpu_ms) for run in told if run.gpu_ms] == [(16, 4.0), (32, 8.0)]


@pytest.mark.parametrize("blind", [("heavy", "light", "broad"), ("heavy",)], ids=["all", "one"])
@pytest.mark.parametrize("seed", range(3))
def test_what_nobody_looked_at_is_learned_by_what_neighbors_feel(seed: int, blind: tuple[str, ...]) -> None:
    """`heavy` uses six times the DRAM of others, which `light` does not mind: one number for each cannot tell both."""
    solo = [
        replace(run, cache_percent=None, dram_percent=None) if run.model in blind else run for run in solo_runs(seed)
    ]
    assert unseen_models(solo) == sorted(blind)
    fitted, held = split(co_runs(seed, 150), 0.3, seed)
    model = fit(solo, fitted, "V100")
    assert all(model.models[name].dram_percent.at(1000) == 0 for name in blind)
    control = errors_by_model(by_constant(model, constant_factors(model, fitted)), held)[""].mean
    error = errors_by_model(by_model(model), held)[""].mean
    assert error < 3 * NOISE
    assert error < 0.9 * control


def test_of_few_runs_nobody_is_made_out_to_be_felt_unlike_others() -> None:
    """Three of each tell who minds, hardly who is minded: no prediction strays far."""
    blind = [replace(run, cache_percent=None, dram_percent=None) for run in solo_runs(0)]
    everything = co_runs(0, 100)
    for seed in range(5):
        model = fit(blind, few_of_each(everything, 3, seed), "V100")
        errors = errors_by_model(by_model(model), everything)
        assert errors[""].mean < 6 * NOISE
        assert errors[""].largest < 0.3


def test_where_nobody_minds_anybody_nothing_is_learned() -> None:
    blind = [replace(run, cache_percent=None, dram_percent=None) for run in solo_runs(0)]
    alone = fit_alone(blind, "V100", transfers(blind))
    calm = [
        CoRun(run.tenants, tuple(0.9 * alone.alone(tenant).taken_ms for tenant in run.tenants))
        for run in co_runs(0, 30)
    ]
    assert learn_uses(alone, calm, sorted(alone.models)) == {}
    assert fit(blind, calm, "V100").slowdown(Tenant("light", 8, 50), [Tenant("heavy", 8, 50)]) == 1


def test_what_cannot_be_fitted_is_named() -> None:
    solo, together = solo_runs(0), co_runs(0, 50)
    with pytest.raises(RunsError, match="co-runs of 'heavy' and no solo run"):
        fit([run for run in solo if run.model != "heavy"], together, "V100")
    others = [run for run in together if all(tenant.partition != "heavy" for tenant in run.tenants)]
    with pytest.raises(RunsError, match="no co-run of 'heavy'"):
        fit(solo, others, "V100")
    with pytest.raises(RunsError, match="'broad' ran alone in fewer than 4 ways"):
        fit([run for run in solo if run.model != "broad" or (run.rows == 1 and run.percent < 60)], together, "V100")
    with pytest.raises(RunsError, match="'light', batch 4 on 50 %: computing took 1000 ms of"):
        with_compute(solo, {("light", 4, 50.0): 1000.0})
    with pytest.raises(RunsError, match="less than its transfer"):
        fit([replace(run, gpu_ms=0.001 if run.percent == 20 else None) for run in solo], together, "V100")
