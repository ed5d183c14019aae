"""RequestQueue and IdleWorkers against models so naive that they must be right."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tidegate.api import Model, Request, Worker, WorkerReady
from tidegate.toolkit import IdleWorkers, RequestQueue

MODEL = Model("m", max_rows=64)
PARTITIONS = ("a", "b")
KINDS = ("fast", "slow")


class QueueMachine(RuleBasedStateMachine):
    """A list that is sorted after every arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = RequestQueue(("m", "", ""), MODEL)
        self.naive: list[Request] = []
        self.pushed = 0

    @rule(arrival_ns=st.integers(0, 9), rows=st.integers(1, 5))
    def push(self, arrival_ns: int, rows: int) -> None:
        request = Request(self.pushed, "m", rows, arrival_ns)
        self.pushed += 1
        self.queue.push(request)
        self.naive = sorted([*self.naive, request], key=lambda waiting: waiting.arrival_ns)

    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.naive)))
        count = data.draw(st.integers(0, len(self.naive) - start))
        assert self.queue.pop(count, start) == self.naive[start : start + count]
        del self.naive[start : start + count]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(0, self.pushed))
        self.queue.remove(request_id)
        self.naive = [request for request in self.naive if request.id != request_id]

    @invariant()
    def same(self) -> None:
        assert list(self.queue) == self.naive
        assert len(self.queue) == len(self.naive)
        assert self.queue.rows == sum(request.rows for request in self.naive)
        if self.naive:
            assert self.queue.head == self.naive[0]


class IdleMachine(RuleBasedStateMachine):
    """A dictionary of who is here, and a set of who is busy."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = IdleWorkers(())
        self.here: dict[int, Worker] = {}
        self.busy: set[int] = set()
        self.ready: dict[int, int] = {}

    ids = st.integers(0, 9)  # few pools of many workers: only then can a heap be wrong

    @rule(worker_id=ids, hosts=st.sampled_from([("a",), ("a", "b")]), kind=st.sampled_from(KINDS))
    def join(self, worker_id: int, hosts: tuple[str, ...], kind: str) -> None:
        if worker_id in self.here:
            self.leave(worker_id)  # as the engine tells it
        worker = Worker(worker_id, f"w{worker_id}", hosts, kind)
        self.idle.join(worker)
        self.here[worker_id] = worker

    @rule(worker_id=ids)
    def leave(self, worker_id: int) -> None:
        self.idle.leave(worker_id)
        self.here.pop(worker_id, None)
        self.busy.discard(worker_id)
        self.ready.pop(worker_id, None)

    @rule(worker_id=ids)
    def occupy(self, worker_id: int) -> None:
        self.idle.occupy(worker_id)
        if worker_id in self.here:
            self.busy.add(worker_id)
            self.ready.pop(worker_id, None)

    @rule(partition=st.sampled_from(PARTITIONS))
    def occupy_the_first(self, partition: str) -> None:
        if worker := self.idle.peek(partition):
            self.occupy(worker.id)

    @rule(worker_id=ids)
    def release(self, worker_id: int) -> None:
        assert self.idle.note(WorkerReady(7, worker_id, 7)) == self.here.get(worker_id)
        self.busy.discard(worker_id)
        self.ready.pop(worker_id, None)

    @rule(worker_id=ids, free_ns=st.integers(8, 10))
    def ready_soon(self, worker_id: int, free_ns: int) -> None:
        if worker_id in self.here and worker_id not in self.busy - self.ready.keys():
            return  # as the engine has it, only busy ones are about to be idle
        self.idle.note(WorkerReady(7, worker_id, free_ns))
        if worker_id in self.here:
            self.busy.discard(worker_id)
            self.ready[worker_id] = free_ns

    @rule(worker_id=ids)
    def withdraw(self, worker_id: int) -> None:
        self.idle.withdraw(worker_id)
        if self.ready.pop(worker_id, None):
            self.busy.add(worker_id)

    @invariant()
    def same(self) -> None:
        for worker_id in range(10):
            assert self.idle.get(worker_id) == self.here.get(worker_id)
            assert self.idle.is_idle(worker_id) == (worker_id in self.here and worker_id not in self.busy)
        for partition in PARTITIONS:
            hosting = [worker for _, worker in sorted(self.here.items()) if partition in worker.hosts]
            idle = [worker for worker in hosting if worker.id not in self.busy]
            idle.sort(key=lambda worker: self.ready.get(worker.id, 0))
            assert self.idle.count_idle(partition) == len(idle)
            for worker in idle:
                assert self.idle.start_ns(7, worker.id) == self.ready.get(worker.id, 7)
            first_of_kind: dict[str, Worker] = {}
            for worker in idle:
                first_of_kind.setdefault(worker.device_class, worker)
            assert self.idle.peek(partition) == (idle[0] if idle else None)
            assert self.idle.peek_each_kind(partition) == list(first_of_kind.values())
            assert self.idle.kinds_hosting(partition) == {worker.device_class for worker in hosting}
            assert self.idle.count_hosting(partition) == len(hosting)


TestRequestQueue = QueueMachine.TestCase
TestIdleWorkers = IdleMachine.TestCase
TestRequestQueue.settings = TestIdleWorkers.settings = settings(max_examples=examples(0.2), stateful_step_count=30)


@given(st.lists(st.integers(1, 5)), st.integers(0, 30))
def test_the_longest_prefix_within_a_number_of_rows(sizes: list[int], max_rows: int) -> None:
    queue = RequestQueue(("m", "", ""), MODEL)
    for number, rows in enumerate(sizes):
        queue.push(Request(number, "m", rows, arrival_ns=number))
    count, rows = queue.prefix_within(max_rows)
    assert rows == sum(sizes[:count])
    assert rows <= max_rows or count == 1
    assert count == len(sizes) or rows + sizes[count] > max_rows
    assert count or not sizes


@given(st.permutations(range(10)), st.sets(st.integers(0, 9)))
def test_idle_workers_come_smallest_first_whoever_was_taken_from_among_them(order: list[int], taken: set[int]) -> None:
    idle = IdleWorkers(tuple(Worker(worker_id, f"w{worker_id}", ("a",)) for worker_id in order))
    for worker_id in taken:
        idle.occupy(worker_id)
    came = []
    while worker := idle.peek("a"):
        idle.occupy(worker.id)
        came.append(worker.id)
    assert came == sorted(set(order) - taken)


class _Watched:
    """In place of a request: counts how often anybody looks at its id."""

    looks = 0
    rows = 1

    def __init__(self, number: int) -> None:
        self.arrival_ns = number
        self._id = number

    @property
    def id(self) -> int:
        _Watched.looks += 1
        return self._id


def test_thousands_leave_at_once_without_a_search_each() -> None:
    queue = RequestQueue(("m", "", ""), Model("m", 8))
    for number in range(2000):
        queue.push(_Watched(number))  # type: ignore[arg-type]
    _Watched.looks = 0
    for number in reversed(range(2000)):
        queue.remove(number)
    assert (len(queue), queue.rows) == (0, 0)
    assert _Watched.looks <= 2 * 2000


@given(st.lists(st.tuples(st.sampled_from(["push", "remove", "pop"]), st.integers(0, 12), st.integers(0, 3))))
def test_a_queue_is_a_list_in_the_order_of_arrival(steps: list[tuple[str, int, int]]) -> None:
    queue, model = RequestQueue(("m", "", ""), Model("m", 8)), list[Request]()
    for number, (step, which, start) in enumerate(steps):
        if step == "push":
            request = Request(number, "m", 1 + which % 3, which)
            queue.push(request)
            model.append(request)
            model.sort(key=lambda one: one.arrival_ns)
        elif step == "remove":
            queue.remove(which)
            model = [request for request in model if request.id != which]
        else:
            taken = queue.pop(which, start)
            assert taken == model[start : start + which]
            del model[start : start + which]
        assert list(queue) == model
        assert (len(queue), queue.rows) == (len(model), sum(request.rows for request in model))
        if model:
            assert queue.head == model[0]


def test_what_shares_workers_by_way_of_others_shares_them() -> None:
    hosts = [("a", "b"), ("b", "c"), ("c",), ("d",), ("d", "e"), ("e",), ("e",)]
    idle = IdleWorkers(tuple(Worker(number, f"w{number}", hosted) for number, hosted in enumerate(hosts)))
    assert idle.sharing("a") == idle.sharing("c") == (frozenset("abc"), 3)
    assert idle.sharing("d") == (frozenset("de"), 4)
    assert idle.sharing("nobody's") == (frozenset(["nobody's"]), 0)
    idle.occupy(1)
    assert idle.sharing("a") == (frozenset("abc"), 3), "one that is busy is there"
    idle.leave(1)
    assert idle.sharing("a") == (frozenset("ab"), 1), "the bridge is gone"
    assert idle.sharing("c") == (frozenset("c"), 1)


@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=1, max_size=3), max_size=8), st.sets(st.integers(0, 7)))
def test_sharing_is_an_equivalence_that_no_worker_crosses(hosts: list[set[str]], left: set[int]) -> None:
    members = {number: Worker(number, f"w{number}", tuple(sorted(hosted))) for number, hosted in enumerate(hosts)}
    idle = IdleWorkers(tuple(members.values()))
    for number in left:
        idle.leave(number)
        members.pop(number, None)
    parts = {partition: idle.sharing(partition) for partition in "abcdef"}
    for partition, (shared, count) in parts.items():
        assert partition in shared
        assert all(parts[other] == (shared, count) for other in shared)
        assert count == sum(not shared.isdisjoint(worker.hosts) for worker in members.values())
        assert all(shared.issuperset(worker.hosts) or shared.isdisjoint(worker.hosts) for worker in members.values())
