"""iGniter's closed form and its provisioning, worked out by hand."""

import pytest

from tests.plugins.inss.problems import problem, tenant
from tidegate_inss.igniter import Igniter, fit, plan_igniter
from tidegate_inss.prediction import AssignedShare, Predictor


def test_the_closed_form_is_found_where_the_truth_is_one() -> None:
    """`calm` computes (1.5 + 0.5 b) / share milliseconds."""
    fitted = fit(Predictor(problem(tenant("calm", 100, 60))), 0)
    assert fitted.k4 == pytest.approx(0, abs=1e-6)
    for batch, share in ((1, 1.0), (1, 0.1), (32, 0.5)):
        assert fitted.gpu_ms(batch, share) == pytest.approx((1.5 + 0.5 * batch) / share, rel=1e-6)
    assert fitted.minds_cache == 0


def test_the_least_share_is_that_on_which_a_batch_takes_half_the_slo() -> None:
    """30 ms bring three requests at 100/s, and a batch of three is to take as long."""
    igniter = Igniter(Predictor(problem(tenant("calm", 100, 60))))
    least = igniter.least_units(0, 100)
    assert least is not None
    assert (least.batch, least.units) == (3, 4)  # (1.5 + 3 / 2) / 30: a tenth


def test_who_is_slowed_down_gets_more_until_all_are_on_time() -> None:
    given = problem(tenant("quick", 800, 20), tenant("slow", 60, 300))
    igniter = Igniter(Predictor(given))
    alone = [igniter.least_units(model, given.models[model].rate_rps) for model in range(2)]
    shares, missing = igniter.run()
    assert not missing
    units = {share.model: share.units for share in shares}
    assert all(least is not None and units[model] >= least.units for model, least in enumerate(alone))
    assert sum(units.values()) > sum(least.units for least in alone if least)


def test_what_needs_more_than_a_gpu_is_divided() -> None:
    """A whole GPU brings 32 rows in 17.5 ms; nine tenths of that are counted on."""
    shares, missing = plan_igniter(Predictor(problem(tenant("calm", 3000, 60), gpus=3)))
    assert not missing
    assert shares[0].units == 40
    assert len(shares) >= 2


def test_a_gpu_too_few_is_said() -> None:
    shares, missing = plan_igniter(Predictor(problem(tenant("calm", 9000, 60), gpus=2)))
    assert shares == [AssignedShare(0, 0, 40, 32), AssignedShare(0, 1, 40, 32)]
    assert "more GPUs" in missing[0]
