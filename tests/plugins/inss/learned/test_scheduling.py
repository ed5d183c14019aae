"""Both stages over any number of GPUs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.plugins.inss.learned.made_up import Randomly, workload
from tidegate_inss.learned.catalog import Loads
from tidegate_inss.learned.outcome import by_need, outcome_of, to_the_least_busy
from tidegate_inss.learned.placement import MAX_MODELS_PER_GPU, NO_CHILD
from tidegate_inss.learned.scheduling import layers, schedule


@pytest.mark.parametrize(("gpus", "number"), [(1, 1), (4, 1), (5, 2), (16, 2), (17, 3), (64, 3), (65, 4)])
def test_64_gpus_are_three_layers(gpus: int, number: int) -> None:
    assert layers(gpus) == number


@settings(max_examples=examples(0.5))
@given(seed=st.integers(0, 10**6), gpus=st.integers(1, 23), problems=st.integers(1, 3))
def test_everybody_is_on_a_gpu_of_its_problem_that_has_memory(seed: int, gpus: int, problems: int) -> None:
    work = workload(seed, problems, gpus)
    loads, drawn = work.loads, Randomly(seed)
    decision = schedule(loads, work.memory_mib, drawn, drawn.share)
    gpu = decision.gpu
    placed = gpu != NO_CHILD
    assert np.array_equal(gpu[placed] // gpus, loads.problem[placed])
    assert (np.bincount(gpu[placed], loads.memory_mib[placed], problems * gpus) <= work.memory_mib.reshape(-1)).all()
    assert np.bincount(gpu[placed]).max(initial=0) <= MAX_MODELS_PER_GPU
    in_slots = np.sort(decision.slots.load[decision.slots.taken])
    assert in_slots.tolist() == np.flatnonzero(placed).tolist()
    units = decision.shares.units.sum(axis=1)
    assert np.array_equal(units, np.where(decision.slots.taken.any(axis=1), work.catalog.units, 0))


def test_a_model_for_which_a_group_has_memory_only_in_pieces_goes_elsewhere() -> None:
    """Of five GPUs the fourth and the fifth are in two groups; one has memory in pieces, the other one in one."""
    work = workload(3)
    order = np.argsort(-work.catalog.memory_mib)[:5]
    loads = Loads.of(work.catalog, [(order, np.full(5, 1e-3))], gpus=5)
    largest = float(loads.memory_mib.max())
    memory = np.array([[0.6, 0.6, 0.6, 0.6, 5.0]]) * largest
    rest = np.flatnonzero(loads.memory_mib > 0.6 * largest)
    assert len(rest) > 1
    decision = schedule(loads, memory, to_the_least_busy, by_need)
    assert (decision.gpu[rest] == 4).all()


def test_who_fits_nowhere_is_left_out_and_the_others_are_served() -> None:
    work = workload(3)
    loads = work.loads
    memory = np.full((1, 4), float(np.median(loads.memory_mib)))
    decision = schedule(loads, memory, to_the_least_busy, by_need)
    too_large = loads.memory_mib > memory[0, 0]
    assert too_large.any()
    assert (decision.gpu[too_large] == NO_CHILD).all()
    late = outcome_of(loads, decision.slots, decision.shares).late
    assert (late[too_large] == 1).all()
    assert (late[~too_large] < 1).any()


def test_groups_are_decided_at_once() -> None:
    """What a decision takes grows with the largest group of models, not with the number of groups."""
    work = workload(5, gpus=64)
    placer = Randomly(1)
    decision = schedule(work.loads, work.memory_mib, placer, by_need)
    copies = len(work.loads.need)
    assert copies >= 64
    assert len({step.layer for step in decision.placements}) == 3
    assert placer.calls == len(decision.placements) < 2.5 * copies
