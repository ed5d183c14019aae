"""What was executed between two instants is told by each Triton's counters alone, however those come, go and fall."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.sim.observed_profiles import NO_BATCH_STATS, TritonBatchStats, batch_stats_between
from tidegate.sim.shadow_messages import BypassedResponse, TritonStatistics

S = 1_000_000_000
MS = 1_000_000
TOOK_MS = {1: 24, 2: 29}
ENDED = [BypassedResponse(at_s * S, "m", 32 * MS, ok=True) for at_s in range(60)]


def _says(triton: str, ones: int, twos: int) -> dict[str, TritonStatistics]:
    """What a Triton says that has executed so many batches of one row and of two; each request took 30 ms in it."""
    batches = [(rows, n, n * TOOK_MS[rows] * MS) for rows, n in ((1, ones), (2, twos)) if n]
    answered = ones + 2 * twos
    return {triton: TritonStatistics("m", triton, answered, answered * 30 * MS, batches)}


def test_told_is_what_was_executed_between_two_instants() -> None:
    first, last = _says("a", 10, 0), _says("a", 20, 10)
    assert batch_stats_between([(0, first), (10 * S, last)], ENDED) == TritonBatchStats(
        2 * MS, {1: (10, 24.0 * MS), 2: (10, 29.0 * MS)}, 10
    )
    assert (
        batch_stats_between([(0, first)], ENDED)
        == batch_stats_between([(0, last), (10 * S, first)], ENDED)
        == NO_BATCH_STATS
    )


def test_a_triton_that_begins_anew_or_does_not_answer_once_is_left_out_of_that_time() -> None:
    """Of `b` there were 900 batches before; added up, all would be fewer at the end than at the beginning."""
    instants = [0, 10 * S, 20 * S, 30 * S]
    expected = TritonBatchStats(2 * MS, {1: (30 + 20, 24.0 * MS)}, 10 + 900)
    of_a = [_says("a", ones, 0) for ones in (10, 20, 30, 40)]
    for of_b in (
        [_says("b", ones, 0) for ones in (900, 920, 5, 5)],
        [_says("b", 900, 0), _says("b", 920, 0), {}, _says("b", 930, 0)],
    ):
        assert (
            batch_stats_between([(at, {**a, **b}) for at, a, b in zip(instants, of_a, of_b, strict=True)], ENDED)
            == expected
        )


def test_requests_of_a_time_of_which_nothing_is_known_are_left_out_too() -> None:
    slow = [BypassedResponse(at_s * S, "m", 500 * MS, ok=True) for at_s in range(11, 19)]
    said = [(0, _says("a", 10, 0)), (10 * S, _says("a", 20, 0)), (20 * S, _says("a", 3, 0)), (30 * S, _says("a", 9, 0))]
    assert batch_stats_between(said, [*ENDED, *slow]) == TritonBatchStats(2 * MS, {1: (16, 24.0 * MS)}, 10)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("abc"), st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans(), st.booleans())
        ),
        min_size=2,
        max_size=8,
    )
)
def test_nothing_is_told_that_no_triton_executed(steps: list[dict[str, tuple[int, int, bool, bool]]]) -> None:
    """With each step Tritons execute batches, after they began anew or not, and say so or do not."""
    executed = dict.fromkeys("abc", (0, 0))
    all_of = {1: 0, 2: 0}
    said = []
    for number, step in enumerate(steps):
        says: dict[str, TritonStatistics] = {}
        for name, (ones, twos, begins_anew, answers) in step.items():
            before = (0, 0) if begins_anew else executed[name]
            executed[name] = before[0] + ones, before[1] + twos
            all_of = {1: all_of[1] + ones, 2: all_of[2] + twos}
            if answers:
                says |= _says(name, *executed[name])
        said.append((number * S, says))
    found = batch_stats_between(said, ENDED)
    assert found.network_latency_ns in (0, 2 * MS)
    for rows, (count, mean_ns) in found.batches.items():
        assert 0 < count <= all_of[rows]
        assert mean_ns == TOOK_MS[rows] * MS
