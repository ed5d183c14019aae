"""Small batches that run, by rows: against a look at each of them."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_baselines.small_batches import RunningBatch, SmallBatches

KEYS = [(model, "", "") for model in "abc"]
batches = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 4), st.integers(0, 9)), max_size=12)


@given(batches, st.sets(st.integers(0, 11)), st.sampled_from(KEYS), st.integers(0, 5), st.lists(st.integers(0, 9)))
def test_it_finds_what_a_look_at_each_would(
    drawn: list[tuple[tuple[str, str, str], int, int]],
    ended: set[int],
    key: tuple[str, str, str],
    most_rows: int,
    instants: list[int],
) -> None:
    small = SmallBatches()
    running = {worker: RunningBatch(worker, own, (), rows, due) for worker, (own, rows, due) in enumerate(drawn)}
    for worker, batch in running.items():
        small.add(worker, batch)
    for worker in ended & set(running):
        small.remove(worker, running.pop(worker))
    fits = {worker: batch for worker, batch in running.items() if batch.rows <= most_rows}
    assert sorted(small.of_others(key, most_rows)) == [worker for worker, batch in fits.items() if batch.key != key]
    for now_ns in sorted(instants):
        on_time = [worker for worker, batch in fits.items() if batch.key == key and batch.due_ns >= now_ns]
        assert sorted(small.of_own(key, most_rows, lambda worker: running[worker].due_ns < now_ns)) == on_time  # noqa: B023
    small.reconsider(running.items())
    assert sorted(small.of_own(key, most_rows, lambda worker: False)) == [
        worker for worker, batch in fits.items() if batch.key == key
    ]


def test_what_was_too_late_is_not_asked_about_again() -> None:
    small = SmallBatches()
    for worker in range(3):
        small.add(worker, RunningBatch(worker, KEYS[0], (), 1, due_ns=0))
    asked: list[int] = []

    def late(worker: int) -> bool:
        asked.append(worker)
        return True

    assert small.of_own(KEYS[0], 1, late) == small.of_own(KEYS[0], 1, late) == []
    assert sorted(asked) == [0, 1, 2]
