"""By how much models slow each other down, of stages that run as on a GPU that is sliced, or not."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.tritons.serialization import MIN_STAGES_FOR_VERDICT, InterferenceEstimator

MS = 1_000_000


def emulate(
    seen: InterferenceEstimator, slowdown: float, times_ms: dict[str, float], *, seconds: float, busy: float
) -> None:
    """Stages of these models, each on a worker of its own, as an emulated GPU runs them.

    `busy`: the share of the time in which each would be busy if it were alone.
    """
    random, step_ns = Random(1), MS // 10
    left: dict[str, float] = {}
    began_ns = seen.seen_ns
    for now_ns in range(began_ns, began_ns + round(seconds * 1e9), step_ns):
        for worker_id, (model, took_ms) in enumerate(times_ms.items()):
            if model in left:
                left[model] -= step_ns / (1 + slowdown * (len(left) - 1))
                if left[model] <= 0:
                    del left[model]
                    seen.over(now_ns, worker_id, worker_id, teaches=True)
            elif random.random() < busy / (1 - busy) * step_ns / (took_ms * MS):
                left[model] = took_ms * MS
                seen.sent(now_ns, worker_id, worker_id, (model, 1, ""))


@pytest.mark.parametrize("slowdown", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("models", [2, 4])
def test_it_is_learned_from_stages_beside_others(slowdown: float, models: int) -> None:
    seen = InterferenceEstimator()
    emulate(seen, slowdown, {f"m{number}": 8.0 + 3 * number for number in range(models)}, seconds=6, busy=0.3)
    assert seen.value == pytest.approx(slowdown, abs=0.1)
    took = seen.took_ns("m0")
    assert took is not None
    assert took == pytest.approx((8 * MS, 8 * MS), rel=0.2)


def test_nothing_is_known_without_stages_beside_others() -> None:
    seen = InterferenceEstimator()
    emulate(seen, 1.0, {"m": 8.0}, seconds=4, busy=0.5)
    assert seen.value is None
    assert seen.took_ns("m") is not None
    assert seen.active == {"m"}


def test_what_failed_teaches_nothing() -> None:
    seen = InterferenceEstimator()
    for number in range(2 * MIN_STAGES_FOR_VERDICT):
        seen.sent(number * MS, 0, number, ("m", 1, ""))
        seen.over(number * MS + MS // 2, 0, number, teaches=False)
    assert not seen.active
    assert seen.took_ns("m") is None


def test_a_stage_that_was_sent_early_runs_from_the_end_of_the_one_before_it() -> None:
    seen = InterferenceEstimator()
    for number in range(10):
        seen.sent(10 * MS * number, 0, number, ("m", 1, ""))
        if number:
            seen.over(10 * MS * number + 2 * MS, 0, number - 1, teaches=True)
    # The first took 12 ms, and each of the others 10: it waited for 2 of its 12.
    took = seen.took_ns("m")
    assert took is not None
    assert took == pytest.approx((10 * MS, 10 * MS), rel=0.2)


def test_it_is_learned_anew_once_it_is_forgotten_and_what_stages_take_alone_is_known_still() -> None:
    seen = InterferenceEstimator()
    emulate(seen, 1.0, {"a": 8.0, "b": 9.0}, seconds=4, busy=0.4)
    alone = seen.took_ns("a")
    seen.forget()
    assert seen.value is None
    assert seen.took_ns("a") == alone


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans(), st.booleans()), max_size=60))
def test_whatever_comes_it_stays_within_its_bounds_and_keeps_no_stage_that_is_over(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    seen, now_ns, running = InterferenceEstimator(), 0, list[tuple[int, int]]()
    for number, (worker_id, wait_ms, ends, teaches) in enumerate(steps):
        now_ns += wait_ms * MS
        if ends and running:
            seen.over(now_ns, *running.pop(wait_ms % len(running)), teaches=teaches)
        else:
            seen.sent(now_ns, worker_id, number, (f"m{worker_id}", 1, ""))
            running.append((worker_id, number))
    for each in running:
        seen.over(now_ns, *each, teaches=True)
    assert seen.value is None or 0 <= seen.value <= 2
    assert not seen._queues
