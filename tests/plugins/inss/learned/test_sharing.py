"""Stage 2: all of a GPU is divided, everybody has a part of it, and batches are on time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.plugins.inss.learned.made_up import Randomly, workload
from tidegate.schemas import InterferenceModel, Tenant
from tidegate_inss.learned.catalog import Loads, catalog_of
from tidegate_inss.learned.outcome import by_need, outcome_of, to_the_least_busy
from tidegate_inss.learned.placement import MAX_MODELS_PER_GPU, Bools
from tidegate_inss.learned.scheduling import schedule
from tidegate_inss.learned.sharing import (
    SHARING_STATE,
    GpuSlots,
    SlotShares,
    decide,
    observe,
    rounded,
    slowdowns,
    softmax,
)
from tidegate_inss.prediction import MIN_BATCHES_PER_SLO, AssignedShare, Floats, Predictor
from tidegate_inss.training.workloads import drawn_problem

SEEDS = st.integers(0, 10**6)
LOGITS = arrays(np.float64, (5, MAX_MODELS_PER_GPU), elements=st.floats(-30, 30))
TAKEN = arrays(np.bool_, (5, MAX_MODELS_PER_GPU))


@given(logits=LOGITS, taken=TAKEN, units=st.integers(MAX_MODELS_PER_GPU, 100))
def test_there_are_no_fragments_and_nobody_is_left_with_nothing(logits: Floats, taken: Bools, units: int) -> None:
    shares = softmax(logits, taken)
    given_away = rounded(shares, taken, units)
    assert (given_away.sum(axis=1) == np.where(taken.any(axis=1), units, 0)).all()
    assert (given_away[taken] >= 1).all()
    assert not given_away[~taken].any()
    spare = units - taken.sum(axis=1, keepdims=True)
    assert (np.abs(given_away - taken - shares * spare) < 1 + 1e-9).all(), "rounded to a neighbor"


@given(seed=SEEDS)
def test_batches_are_on_time_if_any_is_and_fit_into_memory(seed: int) -> None:
    work = workload(seed, problems=2)
    loads, drawn = work.loads, Randomly(seed)
    tight = np.full((2, 4), 9_000.0)
    decision = schedule(loads, tight, drawn, drawn.share)
    slots, shares, catalog = decision.slots, decision.shares, work.catalog
    taken = slots.taken
    model = loads.model[slots.load]
    own = catalog.tables.transfer_ms[model, shares.batch]
    slowed = slowdowns(loads, slots, shares)
    batch_ms = own + catalog.tables.gpu_ms[model, shares.units, shares.batch] * slowed
    late = taken & (MIN_BATCHES_PER_SLO * batch_ms > catalog.slo_ms[model] * (1 + 1e-9))
    assert (shares.batch[late] == 1).all()
    assert (shares.batch[taken] >= 1).all()
    assert (shares.batch <= catalog.max_batch[model]).all()
    memory = np.where(taken, catalog.memory_mib[model] + shares.batch * catalog.memory_per_row_mib[model], 0.0)
    assert (memory.sum(axis=1) <= 9_000).all()


@given(seed=SEEDS, slot=st.integers(0, 1))
def test_an_action_enlarges_a_share_and_another_one_makes_batches_smaller(seed: int, slot: int) -> None:
    work = workload(seed)
    loads = work.loads
    decision = schedule(loads, work.memory_mib, to_the_least_busy, by_need)
    slots, memory = decision.slots, work.memory_mib[0]
    more = by_need(np.zeros((4, 1), np.float32))
    more[:, slot] = 1.0
    with_more = decide(loads, slots, more, memory)
    assert (with_more.units[:, slot] >= decision.shares.units[:, slot]).all()
    # Smaller batches leave more memory and less interference to their neighbors, whose batches may then be larger.
    fewer = by_need(np.zeros((4, 1), np.float32))
    fewer[:, MAX_MODELS_PER_GPU + slot] = -1.0
    ample = np.full_like(memory, 1e9)
    before, with_fewer = (
        decide(loads, slots, actions, ample) for actions in (by_need(np.zeros((4, 1), np.float32)), fewer)
    )
    assert (with_fewer.batch[:, slot] <= before.batch[:, slot]).all()
    assert np.array_equal(with_fewer.units, before.units)


@given(seed=SEEDS)
def test_what_batches_take_is_what_the_interference_file_says(seed: int) -> None:
    """Outcome, planners' forecast and simulator are one model."""
    problem = drawn_problem(np.random.default_rng(seed), 3, 40)
    predictor = Predictor(problem)
    catalog = catalog_of(problem, predictor.tables)
    loads = Loads.of(catalog, [(np.arange(3), np.ones(3))], gpus=1)
    slots = GpuSlots.of(loads, np.zeros(3, np.int64), 1)
    rng = np.random.default_rng(seed)
    units = rounded(softmax(rng.normal(size=(1, MAX_MODELS_PER_GPU)), slots.taken), slots.taken, 40)
    batch = np.where(slots.taken, rng.integers(1, 33, (1, MAX_MODELS_PER_GPU)), 0)
    outcome = outcome_of(loads, slots, SlotShares(units, batch))
    shares = [
        AssignedShare(int(loads.model[load]), 0, int(units[0, at]), int(batch[0, at]))
        for at, load in enumerate(slots.load[0, :3])
    ]
    tenants = [Tenant(f"model_{share.model}", share.batch, 100 * share.units / 40) for share in shares]
    measured = problem.measured
    assert isinstance(measured, InterferenceModel)
    for at, taken_ms in enumerate(predictor.batch_ms(shares)):
        copy = slots.load[0, at]
        throughput = 1000 * shares[at].batch / taken_ms / catalog.usual_rps[shares[at].model]
        assert np.isclose(outcome.throughput[copy], throughput)
        expected_ms = measured.expected_ms(tenants[at], tenants[:at] + tenants[at + 1 :])
        assert np.isclose(taken_ms, expected_ms, rtol=1e-6)


def test_states_of_gpus_are_finite_and_empty_ones_are_told_as_such() -> None:
    work = workload(11)
    loads = work.loads
    gpu = np.zeros(len(loads.need), np.int64)
    gpu[MAX_MODELS_PER_GPU:] = 1
    states = observe(loads, GpuSlots.of(loads, gpu, 4), np.full(4, np.inf))
    assert states.shape == (4, SHARING_STATE)
    assert np.isfinite(states).all()
    assert states[0].any()
    assert not states[2:].any()


def test_who_has_no_share_earns_nothing_and_is_late() -> None:
    work = workload(11)
    loads = work.loads
    gpu = np.zeros(len(loads.need), np.int64)
    gpu[1:] = -1
    slots = GpuSlots.of(loads, gpu, 1)
    outcome = outcome_of(loads, slots, decide(loads, slots, by_need(np.zeros((1, 1), np.float32)), np.array([np.inf])))
    assert outcome.late[0] == 0
    assert outcome.throughput[0] > 0
    assert (outcome.reward[1:] == -40).all()
