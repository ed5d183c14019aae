"""Learned profiles: they find the truth from a wrong start, and hiccups do not move them."""

import random
from itertools import pairwise
from math import log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Profile, ms_to_ns
from tidegate.engine.estimates.learner import (
    MARGIN_WINDOW_STAGES,
    PUBLISH_EVERY,
    TOO_LONG,
    ProfileCorrection,
    ProfileLearner,
)

MAX_ROWS = 16
BASE = Profile.linear("m", alpha_ms=1, beta_ms=2, max_rows=MAX_ROWS)
GUESS = Profile.linear("m", alpha_ms=0.05, beta_ms=0.5, max_rows=32)
"""What the proxy expects of a model of which it is told nothing."""
TRUTH = Profile.linear("m", alpha_ms=2.5, beta_ms=7, max_rows=MAX_ROWS)


def teach(
    learner: ProfileLearner, truth: Profile, rng: random.Random, stages: int, noise: float = 0.0
) -> list[Profile]:
    """Let it see stages of random sizes; returns what it published."""
    published = []
    for _ in range(stages):
        rows = rng.randint(1, MAX_ROWS)
        learned = learner.observe(rows, round(truth.upper_ns(rows) * (1 + rng.uniform(-noise, noise))))
        if learned:
            published.append(learned)
    return published


def test_it_finds_alpha_and_beta_from_a_wrong_base() -> None:
    learned = teach(ProfileLearner(BASE), TRUTH, random.Random(1), stages=400)[-1]
    alpha_ns = (learned.upper_ns(MAX_ROWS) - learned.upper_ns(1)) / (MAX_ROWS - 1)
    assert abs(alpha_ns / ms_to_ns(2.5) - 1) < 0.03
    for rows in range(1, MAX_ROWS + 1):
        assert 0 <= learned.upper_ns(rows) / TRUTH.upper_ns(rows) - 1 < 0.08, "rather too long than too short"


def test_noise_is_planned_for_with_a_margin() -> None:
    noise = 0.1
    learned = teach(ProfileLearner(BASE), TRUTH, random.Random(2), stages=600, noise=noise)[-1]
    for rows in (4, 8, 16):
        margin_ns = learned.upper_ns(rows) - TRUTH.upper_ns(rows)
        assert 0 < margin_ns < 1.1 * noise * TRUTH.upper_ns(MAX_ROWS), "no stage strays further than the largest may"


def test_the_plan_covers_what_a_skewed_delay_adds() -> None:
    """A mean and some mean deviations would not: of an exponential delay 5 % exceed its mean by two of its own."""
    rng = random.Random(5)
    learner, planned, seen, late = ProfileLearner(BASE), BASE, 0, 0
    for stage in range(4000):
        rows = rng.randint(1, MAX_ROWS)
        took_ns = BASE.upper_ns(rows) + ms_to_ns(1 + 0.05 * rows + rng.expovariate(1 / 0.5))
        if stage >= MARGIN_WINDOW_STAGES:
            seen += 1
            late += took_ns > planned.upper_ns(rows)
        planned = learner.observe(rows, took_ns) or planned
    assert late / seen < 0.02
    excess_ns = planned.upper_ns(8) - BASE.upper_ns(8) - ms_to_ns(1.4)
    assert 0.5 < excess_ns / ms_to_ns(0.5) < 8, "4.6 means are its 99th percentile"


def long_tailed_ns(rng: random.Random) -> int:
    """A stage of a real GPU that anybody may disturb, however many rows it has: 9 ms in the middle, 95 % in 17 ms."""
    return ms_to_ns(9 * rng.lognormvariate(0, 0.9 if rng.random() < 0.02 else 0.4))


def test_of_stages_with_a_long_tail_the_mean_is_expected_and_the_tail_is_planned_for() -> None:
    """What takes equally long at any size, from a guess: neither number is drawn to the other, or to the guess."""
    rng = random.Random(8)
    mean_ns = sum(long_tailed_ns(rng) for _ in range(20_000)) / 20_000
    learner = ProfileLearner(GUESS)
    told, expected, covered = GUESS, dict[int, list[float]](), []
    for stage in range(3000):
        rows, took_ns = rng.randint(1, GUESS.max_rows), long_tailed_ns(rng)
        if stage >= MARGIN_WINDOW_STAGES:
            covered.append(took_ns <= told.upper_ns(rows))
            for size in (1, 8, GUESS.max_rows):
                expected.setdefault(size, []).append(told.expected_ns(size) / mean_ns)
        told = learner.observe(rows, took_ns) or told
    for size, shares in expected.items():
        assert sum(shares) / len(shares) == pytest.approx(1, abs=0.1), size
    assert 0.98 <= sum(covered) / len(covered) <= 0.995


def jittered_ns(rng: random.Random, profile: Profile, rows: int, cv: float) -> int:
    sigma = sqrt(log(1 + cv * cv))
    return round(profile.expected_ns(rows) * rng.lognormvariate(-sigma * sigma / 2, sigma))


LINEAR = Profile.linear("m", alpha_ms=1, beta_ms=5, max_rows=32)
"""6 ms alone, 37 ms in a batch of 32."""


@pytest.mark.parametrize("cv", [0.1, 0.3, 0.5])
@pytest.mark.parametrize(
    ("seen", "unseen", "most"),
    [pytest.param((24, 32), 1, 8.0, id="large ones"), pytest.param((1, 4), 32, 2.5, id="small ones")],
)
def test_of_sizes_never_seen_nobody_believes_what_no_gpu_does(
    seen: tuple[int, int], unseen: int, most: float, cv: float
) -> None:
    """From the proxy's guess, which is wrong by a factor of ten: what stages stray by must not be taken for a slope."""
    shares = []
    for seed in range(5):
        rng, learner = random.Random(seed), ProfileLearner(GUESS)
        for stage in range(500):
            rows = rng.randint(*seen)
            learner.observe(rows, jittered_ns(rng, LINEAR, rows, cv))
            if stage >= PUBLISH_EVERY:
                shares.append(learner.published.expected_ns(unseen) / LINEAR.expected_ns(unseen))
    assert min(shares) > 0.15, "what a row takes in a batch, it takes alone"
    assert max(shares) < most
    assert 0.7 < sum(shares) / len(shares) < most / 1.5


def test_a_base_that_is_right_is_right_for_sizes_that_were_never_seen() -> None:
    rng, learner = random.Random(9), ProfileLearner(LINEAR)
    for _ in range(500):
        learner.observe(32, jittered_ns(rng, LINEAR, 32, 0.1))
        for rows in (1, 8, 32):
            assert learner.published.expected_ns(rows) / LINEAR.expected_ns(rows) == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize(("same", "cv"), [(True, 0.0), (False, 0.3), (False, 0.5)])
def test_the_margin_follows_how_stages_stray(same: bool, cv: float) -> None:
    """A delay is the same at any size, what others take of a GPU is a share: each size has a margin of its own."""
    rng, learner = random.Random(10), ProfileLearner(LINEAR)

    def took_ns(rows: int) -> int:
        return LINEAR.expected_ns(rows) + ms_to_ns(rng.expovariate(1)) if same else jittered_ns(rng, LINEAR, rows, cv)

    truth = {rows: sorted(took_ns(rows) for _ in range(20_000))[19_800] for rows in (1, 8, 32)}
    planned: dict[int, list[float]] = {rows: [] for rows in truth}
    for stage in range(4000):
        rows = rng.randint(1, 32)
        learner.observe(rows, took_ns(rows))
        if stage >= MARGIN_WINDOW_STAGES:
            for size, told in planned.items():
                told.append(learner.published.upper_ns(size) / truth[size])
    for size, told in planned.items():
        assert 0.8 < sum(told) / len(told) < 1.6, size


def test_what_changes_is_soon_believed_though_many_stages_decide() -> None:
    rng, learner = random.Random(11), ProfileLearner(LINEAR)
    for factor in (1, 2, 1):
        truth = LINEAR.scaled(factor)
        for _ in range(400):
            rows = rng.randint(1, 32)
            learner.observe(rows, jittered_ns(rng, truth, rows, 0.1))
        for _ in range(32):
            rows = rng.randint(1, 32)
            learner.observe(rows, jittered_ns(rng, LINEAR.scaled(3 - factor), rows, 0.1))
        for rows in (4, 16, 32):
            told = learner.published.expected_ns(rows) / LINEAR.scaled(3 - factor).expected_ns(rows)
            assert told == pytest.approx(1, abs=0.25)


def test_a_guess_that_all_stages_contradict_does_not_stand_for_long() -> None:
    learner = ProfileLearner(GUESS)
    assert learner.observe(1, LINEAR.expected_ns(1)) is None, "one stage may be an outlier"
    learned = learner.observe(4, LINEAR.expected_ns(4))
    assert learned is not None
    assert learned.expected_ns(1) / LINEAR.expected_ns(1) == pytest.approx(1, abs=0.3)


def test_stages_that_warm_workers_up_are_hearsay_until_another_is_seen() -> None:
    learner = ProfileLearner(GUESS)
    assert learner.observe_warming(1, ms_to_ns(450)) is None, "one may take as long as it likes"
    learned = learner.observe_warming(1, ms_to_ns(30))
    assert learned is not None
    assert learned.expected_ns(1) == pytest.approx(ms_to_ns(30), rel=1e-6)
    assert learner.is_hearsay
    decided = learner.observe(1, ms_to_ns(3))
    assert decided is not None
    assert decided.expected_ns(1) == pytest.approx(ms_to_ns(3), rel=0.01)
    assert not learner.is_hearsay
    assert learner.observe_warming(1, ms_to_ns(450)) is None
    assert learner.published is decided


@given(st.lists(st.tuples(st.integers(1, MAX_ROWS), st.integers(1, 10**9)), min_size=PUBLISH_EVERY, max_size=60))
def test_no_row_takes_longer_in_a_batch_than_alone(stages: list[tuple[int, int]]) -> None:
    learner = ProfileLearner(BASE)
    for rows, duration_ns in stages:
        learner.observe(rows, duration_ns)
        told = learner.published
        assert all(told.expected_ns(size) <= size * (told.expected_ns(1) + 2) for size in range(1, MAX_ROWS + 1))


def test_a_base_that_is_a_little_short_is_corrected_at_once_and_a_little_long_is_left() -> None:
    def off_by(share: float) -> list[Profile]:
        truth = Profile("m", "default", tuple(round(ns * share) for ns in BASE.expected))
        return teach(ProfileLearner(BASE), truth, random.Random(6), stages=200)

    (learned,) = off_by(1.005)
    assert all(learned.upper_ns(rows) >= 1.005 * BASE.upper_ns(rows) - 1 for rows in range(1, MAX_ROWS + 1))
    assert off_by(1 - TOO_LONG / 2) == []
    assert off_by(1 - 2 * TOO_LONG) != []


def test_that_larger_pictures_take_longer_is_no_reason_never_to_merge_two() -> None:
    """Only batches of one row were seen: what two take is not known, and nobody would learn it."""
    guess, others = Profile.linear("m", alpha_ms=0.05, beta_ms=0.5, max_rows=MAX_ROWS), dict[str, ProfileLearner]()
    for width in (100, 200, 300):
        others[f"x:1,{width}"] = ProfileLearner(guess.of_shape(f"x:1,{width}"), others=others)
    for _ in range(3 * PUBLISH_EVERY):
        for width in (100, 200, 300):
            others[f"x:1,{width}"].observe(1, ms_to_ns(width / 20))
    for learner in others.values():
        assert learner.published.efficient_batch_rows == MAX_ROWS
        assert learner.published.fixed_cost_ns > 0.5 * learner.published.expected_ns(1)


def test_a_shape_borrows_no_margin_out_of_all_proportion() -> None:
    """Of a shape whose stages were all large it may be believed that a row takes far less than it does."""
    rng, others = random.Random(6), dict[str, ProfileLearner]()
    for shape in ("x:1", "x:2"):
        others[shape] = ProfileLearner(BASE.of_shape(shape), others=others)
    for _ in range(40):
        others["x:1"].observe(MAX_ROWS, ms_to_ns(rng.choice((2, 40))))
    assert teach(others["x:2"], TRUTH, rng, stages=16)[-1].upper_ns(MAX_ROWS) < ms_to_ns(1000)


def test_what_a_shape_borrows_is_no_more_for_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked through anew at every look, while everybody waits."""
    rng, others = random.Random(8), dict[str, ProfileLearner]()
    shapes = [f"x:{width}" for width in range(1, 41)]
    for shape in shapes:
        others[shape] = ProfileLearner(BASE.of_shape(shape), others=others)
        teach(others[shape], TRUTH, rng, stages=MARGIN_WINDOW_STAGES if shape != shapes[-1] else 1, noise=0.1)
    looked_at = 0
    at = ProfileCorrection.at

    def counting(correction: ProfileCorrection, rows: int) -> float:
        nonlocal looked_at
        looked_at += 1
        return at(correction, rows)

    monkeypatch.setattr(ProfileCorrection, "at", counting)
    learned = teach(others[shapes[-1]], TRUTH, rng, stages=PUBLISH_EVERY - 1, noise=0.1)[-1]
    assert looked_at < 8 * MARGIN_WINDOW_STAGES
    assert 0.05 < learned.upper_ns(8) / learned.expected_ns(8) - 1 < 0.15, "it is borrowed"


def test_a_transient_is_forgotten() -> None:
    """The first stages are far from what is expected; they must not keep the margin wide once the correction is
    known."""
    learned = teach(ProfileLearner(BASE), TRUTH, random.Random(7), stages=64)[-1]
    assert all(learned.upper_ns(rows) < 1.05 * TRUTH.upper_ns(rows) for rows in range(1, MAX_ROWS + 1))


def test_a_true_base_is_left_alone() -> None:
    assert teach(ProfileLearner(BASE), BASE, random.Random(3), stages=200) == []


def test_hiccups_do_not_teach() -> None:
    rng = random.Random(4)
    learner = ProfileLearner(BASE)
    published = teach(learner, TRUTH, rng, stages=400)
    converged = len(published)
    for _ in range(5):
        learner.observe(8, 100 * TRUTH.upper_ns(8))
        published += teach(learner, TRUTH, rng, stages=40)
    for learned in published[converged - 1 :]:
        assert abs(learned.upper_ns(8) / TRUTH.upper_ns(8) - 1) < 0.1


def test_it_speaks_at_most_once_in_a_while() -> None:
    learner = ProfileLearner(BASE)
    heard = [bool(learner.observe(8, TRUTH.upper_ns(8))) for _ in range(5 * PUBLISH_EVERY)]
    assert heard[1], "a profile that is far off is corrected at once"
    assert all(not said or number in (2, 4) or number % PUBLISH_EVERY == 0 for number, said in enumerate(heard, 1))


@given(st.lists(st.tuples(st.integers(1, MAX_ROWS), st.integers(1, 10**12)), min_size=PUBLISH_EVERY, max_size=40))
def test_whatever_it_sees_its_tables_are_monotone_and_positive(stages: list[tuple[int, int]]) -> None:
    learner = ProfileLearner(BASE)
    for rows, duration_ns in stages:
        learned = learner.observe(rows, duration_ns)
        if learned:
            assert learned.max_rows == MAX_ROWS
            assert learned.upper_ns(1) >= 1
            assert all(before <= after for before, after in pairwise(learned.expected))


def test_what_is_doubted_may_be_told_for_more_rows_than_what_takes_its_place() -> None:
    learner = ProfileLearner(BASE)
    assert learner.doubt(BASE.scaled(0.5).up_to(MAX_ROWS // 2))
    assert not learner.doubt(BASE.up_to(MAX_ROWS // 2))
