"""T_wait of equal workers, against equation 1 computed for each of them."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Profile, Request, Worker
from tidegate_paris_elsa.worker_queue import QueuedBatch, WorkerPool, WorkerQueue

PROFILE = Profile("m", "k", tuple(range(10, 50, 10)))
steps = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 4), st.sampled_from(["run", "queue", "leave", "join"])))


def remaining_ns(line: WorkerQueue, now_ns: int) -> int:
    """What is late lasts as long again as it is late."""
    return max(0, line.ends_ns - now_ns) if line.ready else abs(line.ends_ns - now_ns)


@given(steps)
def test_the_first_of_those_with_the_least_wait_is_found(script: list[tuple[int, int, str]]) -> None:
    worker = Worker(0, "w0", ("m",), "k")
    pool, now_ns = WorkerPool(worker), 0
    lines: list[WorkerQueue] = []
    for number, (passed_ns, which, what) in enumerate(script):
        now_ns += passed_ns
        if what == "join" or not lines:
            lines.append(pool.join(worker))
        else:
            line = lines[which % len(lines)]
            if what == "leave":
                lines.remove(line)
                pool.leave(line)
            elif what == "run":
                line.ready, line.ends_ns = False, now_ns + 10 * which
                pool.changed(now_ns, line)
            elif line.ready:
                line.ends_ns = now_ns + which
                pool.changed(now_ns, line)
            else:
                line.push(QueuedBatch(("m", "", ""), Request(number, "m", max(1, which), now_ns)), PROFILE)
                pool.changed(now_ns, line)
        waits = {line.place: line.queued_ns + remaining_ns(line, now_ns) for line in lines}
        found = pool.least_wait(now_ns)
        late = [line for line in lines if not line.ready and line.ends_ns <= now_ns and not line.is_empty]
        assert {line.place for line in pool.stuck} == {line.place for line in late}
        if not waits:
            assert found is None
            continue
        assert found is not None
        wait_ns, line = found
        assert wait_ns == min(waits.values())
        assert line.place == min(place for place, wait in waits.items() if wait == wait_ns)
