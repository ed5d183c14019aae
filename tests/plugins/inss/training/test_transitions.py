"""What is learned from, and what it is made of: made-up models, workloads of them, transitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.inss.learned.made_up import Randomly, workload
from tidegate_inss.learned.outcome import by_need, outcome_of, to_the_least_busy
from tidegate_inss.learned.placement import GROUP_SIZE, NO_CHILD, PLACING_STATE
from tidegate_inss.learned.scheduling import schedule
from tidegate_inss.training.transitions import placing_transitions, sharing_transitions
from tidegate_inss.training.workloads import Workloads, drawn_model

SEEDS = st.integers(0, 10**6)


@given(seed=SEEDS)
def test_made_up_models_are_models(seed: int) -> None:
    """The document itself refuses a larger share that takes longer; beyond that, they are within what was measured."""
    model = drawn_model(np.random.default_rng(seed))
    one, many = model.gpu_ms.at(1, 100), model.gpu_ms.at(32, 100)
    assert 0.1 < one < 50
    assert one < many < 32 * one * 1.5
    rows_per_s = 32_000 / many
    assert 3 < model.cache_percent.at(rows_per_s) < 60
    assert 3 < model.dram_percent.at(rows_per_s) < 90


def test_the_family_spans_what_was_measured() -> None:
    """Of a V100 (iGniter): one row takes 0.8 to 4.6 ms, 32 take 5.4 to 93, on a tenth of it 3 to 9 times as long."""
    rng = np.random.default_rng(0)
    models = [drawn_model(rng).gpu_ms for _ in range(300)]
    one, many, tenth = ([table.at(*each) for table in models] for each in ((1, 100), (32, 100), (32, 10)))
    assert min(one) < 0.8
    assert max(one) > 4.6
    assert min(many) < 5.4
    assert max(many) > 93
    slower = np.array(tenth) / many
    assert slower.min() < 3
    assert slower.max() > 9


def test_workloads_of_another_seed_have_other_models() -> None:
    mine, others = (Workloads(seed, pool=12).draw(4, 4) for seed in (1, 2))
    assert not np.isin(mine.catalog.slo_ms, others.catalog.slo_ms).any()
    again = Workloads(1, pool=12).draw(4, 4)
    assert all(np.array_equal(each, same) for mine_, again_ in zip(mine.problems, again.problems, strict=True)
               for each, same in zip(mine_, again_, strict=True))  # fmt: skip


@given(seed=SEEDS)
def test_workloads_are_neither_idle_nor_hopeless(seed: int) -> None:
    work = workload(seed, problems=8)
    needed = np.bincount(work.loads.problem, work.loads.need) / GROUP_SIZE
    assert (needed > 0.15).all()
    assert np.median(needed) < 1.2


@given(seed=SEEDS, gpus=st.sampled_from([2, 4, 7]))
def test_steps_of_a_group_follow_each_other_and_share_its_reward(seed: int, gpus: int) -> None:
    work = workload(seed, problems=2, gpus=gpus)
    loads, drawn = work.loads, Randomly(seed)
    decision = schedule(loads, work.memory_mib, drawn, drawn.share)
    outcome = outcome_of(loads, decision.slots, decision.shares)
    states, ranks, rewards, following, ended = placing_transitions(work, loads, decision, outcome)
    assert states.shape == following.shape == (len(ended), PLACING_STATE)
    assert len(ended) == sum(len(step.loads) for step in decision.placements)
    assert ended[-1] == 1
    assert np.array_equal(following[:-1][ended[:-1] == 0], states[1:][ended[:-1] == 0])
    assert ((ranks >= 0) & (ranks < GROUP_SIZE)).all()
    if gpus <= GROUP_SIZE and (decision.gpu != NO_CHILD).all():
        ruled = schedule(loads, work.memory_mib, to_the_least_busy, by_need)
        better = outcome.reward - outcome_of(loads, ruled.slots, ruled.shares).reward
        of_problems = [better[loads.problem == problem].mean() for problem in range(2)]
        sums = np.add.reduceat(rewards, np.append(0, np.flatnonzero(ended)[:-1] + 1))
        assert np.allclose(sums, of_problems, atol=1e-3)


@given(seed=SEEDS)
def test_who_does_what_the_rules_say_earns_nothing_more(seed: int) -> None:
    work = workload(seed, problems=2)
    loads = work.loads
    decision = schedule(loads, work.memory_mib, to_the_least_busy, by_need)
    outcome = outcome_of(loads, decision.slots, decision.shares)
    _, _, rewards, _, _ = placing_transitions(work, loads, decision, outcome)
    states, actions, better = sharing_transitions(work, loads, decision, outcome)
    if (decision.gpu != NO_CHILD).all():  # who fits nowhere is in the problem's mean, and in no step
        assert np.allclose(rewards, 0)
    assert np.allclose(better, 0)
    assert len(states) == len(actions) == decision.slots.taken.any(axis=1).sum()
