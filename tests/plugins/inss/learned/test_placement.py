"""Stage 1: nobody goes where there is no room, and groups that are decided side by side do not see each other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.inss.learned.made_up import MODELS, Randomly, workload
from tidegate_inss.learned.catalog import FEATURE_COUNT, Ints, Loads
from tidegate_inss.learned.outcome import to_the_least_busy
from tidegate_inss.learned.placement import (
    CHILD_FEATURES,
    GROUP_SIZE,
    MAX_MODELS_PER_GPU,
    NO_CHILD,
    PLACING_STATE,
    Bools,
    Floats32,
    GroupChildren,
    place,
)
from tidegate_inss.prediction import Floats

SEEDS = st.integers(0, 10**6)


def rooms_of(memory_mib: Floats) -> GroupChildren:
    return GroupChildren(np.ones(memory_mib.shape, np.int64), memory_mib, 0)


@given(seed=SEEDS, memory_mib=st.sampled_from([1_500.0, 4_000.0, 16_000.0]))
def test_nobody_is_placed_where_memory_or_a_slot_is_lacking(seed: int, memory_mib: float) -> None:
    work = workload(seed, problems=3)
    loads = work.loads
    child, steps = place(loads, loads.problem, rooms_of(np.full((3, GROUP_SIZE), memory_mib)), Randomly(seed))
    at = loads.problem * GROUP_SIZE + child
    placed = child != NO_CHILD
    assert (np.bincount(at[placed], loads.memory_mib[placed]) <= memory_mib).all()
    assert np.bincount(at[placed]).max(initial=0) <= MAX_MODELS_PER_GPU
    assert sum(len(step.loads) for step in steps) == placed.sum()
    for left_out in np.flatnonzero(~placed):
        mine = placed & (loads.problem == loads.problem[left_out])
        taken = np.bincount(child[mine], loads.memory_mib[mine], GROUP_SIZE)
        assert (taken + loads.memory_mib[left_out] > memory_mib).all(), "there was room in the end"


def test_a_gpu_has_no_more_models_than_slots() -> None:
    catalog = workload(3).catalog
    models = np.argsort(catalog.memory_mib)[: 3 * MAX_MODELS_PER_GPU + 2] % MODELS
    loads = Loads.of(
        catalog,
        [(np.resize(models, 3 * MAX_MODELS_PER_GPU + 2), np.full(3 * MAX_MODELS_PER_GPU + 2, 1e-3))],
        gpus=GROUP_SIZE,
    )

    def onto_the_fullest(states: Floats32, masks: Bools) -> Ints:
        last: Ints = GROUP_SIZE - 1 - masks[:, ::-1].argmax(axis=1)
        return last

    child, _ = place(loads, loads.problem, rooms_of(np.full((1, GROUP_SIZE), np.inf)), onto_the_fullest)
    assert sorted(np.bincount(child).tolist()) == [2, MAX_MODELS_PER_GPU, MAX_MODELS_PER_GPU, MAX_MODELS_PER_GPU]


@given(seed=SEEDS)
def test_states_say_where_there_is_room_the_least_busy_first(seed: int) -> None:
    work = workload(seed, problems=2)
    loads = work.loads
    told: list[Floats32] = []

    def placer(states: Floats32, masks: Bools) -> Ints:
        assert states.dtype == np.float32
        assert states.shape[1] == PLACING_STATE
        assert np.isfinite(states).all()
        assert np.array_equal(states[:, FEATURE_COUNT + 3 :: CHILD_FEATURES] > 0.5, masks)
        assert (np.diff(masks.astype(int), axis=1) <= 0).all(), "those without room are last"
        needed = np.where(masks, states[:, FEATURE_COUNT + 3 + 4 :: CHILD_FEATURES], np.inf)
        assert (needed[:, 1:] >= needed[:, :-1]).all()
        told.append(states)
        return to_the_least_busy(states, masks)

    memory = np.full((2, GROUP_SIZE), 3_000.0)
    memory[1, 3] = 100.0
    place(loads, loads.problem, rooms_of(memory), placer)
    assert told


@given(seed=SEEDS, first=SEEDS)
def test_problems_side_by_side_are_decided_as_each_by_itself(seed: int, first: int) -> None:
    work = workload(seed, problems=3)
    together = work.loads
    child, _ = place(together, together.problem, rooms_of(work.memory_mib), to_the_least_busy)
    for number, problem in enumerate(work.problems):
        alone = Loads.of(work.catalog, [problem], gpus=GROUP_SIZE)
        own, _ = place(alone, alone.problem, rooms_of(work.memory_mib[number : number + 1]), to_the_least_busy)
        assert own.tolist() == child[together.problem == number].tolist()


def test_copies_of_a_model_go_apart() -> None:
    catalog = workload(3).catalog
    model = int(catalog.borne_alone_rps[:, -1].argmax())
    rate = 2.9 * catalog.borne_alone_rps[model, -1]
    loads = Loads.of(catalog, [(np.array([model]), np.array([rate]))], gpus=GROUP_SIZE)
    assert len(loads.need) == GROUP_SIZE
    for seed in range(5):
        child, _ = place(loads, loads.problem, rooms_of(np.full((1, GROUP_SIZE), np.inf)), Randomly(seed))
        assert sorted(child.tolist()) == list(range(GROUP_SIZE))


def test_a_child_that_is_not_there_gets_nothing() -> None:
    work = workload(5)
    gpus = np.array([[1, 1, 0, 0]])
    rooms = GroupChildren(gpus, np.where(gpus > 0, np.inf, 0.0), 0)
    child, _ = place(work.loads, work.loads.problem, rooms, Randomly(1))
    assert set(child.tolist()) == {0, 1}
