"""What describes models, and how much of a GPU a rate needs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.inss.learned.made_up import MODELS, workload
from tidegate_inss.learned.catalog import BEARS_NOTHING, DESCRIPTION_LENGTH, MAX_SINGLE_COPY_SHARE, Loads

SEEDS = st.integers(0, 10**6)


@given(seed=SEEDS, part=st.floats(0.01, 0.99))
def test_what_is_needed_is_the_least_share_that_bears_the_rate(seed: int, part: float) -> None:
    catalog = workload(seed).catalog
    models = np.arange(MODELS)
    whole = catalog.borne_alone_rps[:, -1]
    rates = np.maximum(part * whole, 1e-6)
    units = np.rint(catalog.needed(models, rates) * catalog.units).astype(int)
    bearing = whole > 0
    assert bearing.sum() > MODELS / 2
    assert (catalog.borne_alone_rps[models, np.minimum(units, catalog.units)] >= rates)[bearing].all()
    assert (catalog.borne_alone_rps[models, np.maximum(0, units - 1)] < rates)[bearing].all()


def test_a_model_that_a_gpu_does_not_bear_needs_several() -> None:
    catalog = workload(3).catalog
    model = int(catalog.borne_alone_rps[:, -1].argmax())
    whole = catalog.borne_alone_rps[model, -1]
    assert catalog.needed(np.array([model]), np.array([2.5 * whole])) == [2.5]
    assert catalog.needed(np.array([model]), np.array([100 * whole])) == [BEARS_NOTHING]


def test_models_are_described_by_numbers_that_networks_can_take() -> None:
    catalog = workload(3).catalog
    assert catalog.described.shape == (MODELS, DESCRIPTION_LENGTH)
    assert catalog.described.dtype == np.float32
    assert np.abs(catalog.described).max() <= 2
    assert catalog.described.std(axis=0).min() > 0.01, "a number that tells no model from another one"


def test_who_knows_of_no_interference_knows_of_no_neighbor() -> None:
    knows, ignores = (workload(3, interference=each).catalog for each in (True, False))
    assert (knows.tables.minds > 0).any()
    assert not ignores.tables.minds.any()
    assert not ignores.tables.cache_percent.any()
    assert not ignores.described[:, -3:].any()
    assert np.array_equal(knows.borne_alone_rps, ignores.borne_alone_rps)


@given(seed=SEEDS, gpus=st.integers(1, 8), times=st.floats(0.1, 6))
def test_a_busy_model_is_replicated_and_its_rate_divided(seed: int, gpus: int, times: float) -> None:
    catalog = workload(seed).catalog
    model = int(catalog.borne_alone_rps[:, -1].argmax())
    rate = times * catalog.borne_alone_rps[model, -1]
    loads = Loads.of(catalog, [(np.array([model, model]), np.array([rate, rate / 100]))], gpus=gpus)
    copies = loads.origin == 0
    assert copies.sum() == min(gpus, int(np.ceil(np.nextafter(times / MAX_SINGLE_COPY_SHARE, 0))))
    assert np.isclose(loads.rate_rps[copies].sum(), rate)
    assert (np.diff(loads.need) <= 0).all(), "those that need most come first"
