"""Late requests that are served anyway (`on_deadline_miss: serve`): first come, first served.

When a worker becomes ready, the engine forms a batch (`LateRequests.batch_for`) of the oldest late request, other late
requests that can share it, and, in the free rows, requests that can still be on time. The policy gets the worker
afterwards. If requests of other clients wait, they get every second batch. Clients of late requests are served in
rotation. A more urgent priority class goes first, late or not.

A worker that stays idle under its policy, or that runs part of a split model, gets late requests through the policy: it
sees them without a deadline and with their own merge key while no on-time request needs the worker. They are withdrawn
as soon as one does.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush

import msgspec

from tidegate.api import NEVER_NS, QueueKey, Request
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.timers import MAX_DEAD_TIMERS
from tidegate.engine.waiting.flows import ClientFlow, ThrottledRequests

LATE_KEY_SUFFIX = "/late"
"""Suffix of the merge key of late requests, so that they share batches only with each other."""


_LateKey = tuple[str, int]
"""(model, priority)."""


class _LateOfModel:
    """The late requests of one priority class of one model that the policy does not see."""

    def __init__(self) -> None:
        self.held = ThrottledRequests()
        self._flows: dict[str, ClientFlow] = {}
        """The clients that wait; `served_ns` counts the rows that the policy was shown."""
        self._numbers = 0
        self._scale = 0
        """Where a client begins that did not wait."""

    def add(self, request: Request) -> None:
        flow = self._flows.get(request.client)
        if flow is None:
            self._numbers += 1
            flow = self._flows[request.client] = ClientFlow(self._numbers, hurried=False)
            flow.served_ns = self._scale
        flow.waiting += 1
        self.held.add(request, flow)

    def remove(self, request: Request) -> ClientFlow:
        flow = self.held.flow_of(request)
        self.held.remove(request.id)
        flow.waiting -= 1
        if not flow.waiting:
            del self._flows[request.client]
        return flow

    def pop(self, most_rows: Callable[[Request], int]) -> list[Request]:
        """Take what can share a batch with the oldest request of the client that had least.

        `most_rows`: of a batch with a request; of a single one there may be more.
        """
        first = self.held.first
        request = first[1] if first else None
        most = most_rows(request) if request else 0
        popped: list[Request] = []
        rows = 0
        while request and (not popped or rows + request.rows <= most):
            popped.append(request)
            rows += request.rows
            flow = self.remove(request)
            self._scale = max(self._scale, flow.served_ns)
            flow.served_ns += request.rows
            request = self.held.oldest_of_key((request.model, request.shape, request.merge_key))
        return popped


class LateRequests:
    """Requests past their deadline that are still served, throttled or visible to the policy."""

    def __init__(
        self,
        fleet: WorkerTable,
        expectations: Expectations,
        queued: Mapping[int, Request],
        is_free: Callable[[int], bool],
    ) -> None:
        """Create the table without late requests.

        `queued`: requests that the policy sees, by id. `is_free(worker_id)`: whether the policy may give work to an
        idle worker.
        """
        self.earliest_ns = NEVER_NS
        """No client of a late request ceases to wait before, and perhaps none then."""
        self._fleet = fleet
        self._queued = queued
        self._expectations = expectations
        self._is_free = is_free
        self._held: dict[int, Request] = {}
        self._of_model: dict[_LateKey, _LateOfModel] = {}
        self._unseen: set[int] = set()
        """Late requests, by id, that the policy has never seen."""
        self._led: set[int] = set()
        """The workers, by id, whose latest batch was formed for a late request."""
        self._shown: dict[int, Request] = {}
        """Late requests shown to the policy; those that it ran stay until `to_call_back`."""
        self._expiries: list[tuple[int, int]] = []
        """When the answers are wanted no more, and which by id.

        What is not late any more stays until it surfaces, or most of them are such.
        """

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._held.values())

    @property
    def waits(self) -> bool:
        """Whether a late request may wait, visible to the policy or not."""
        return bool(self._held or self._shown)

    @property
    def next_ns(self) -> int:
        """Time in ns at which the next client of a late request stops waiting; NEVER_NS if none does."""
        expiries, held, queued = self._expiries, self._held, self._queued
        while expiries and expiries[0][1] not in held and expiries[0][1] not in queued:
            heappop(expiries)
        self.earliest_ns = expiries[0][0] if expiries else NEVER_NS
        return self.earliest_ns

    def add(self, request: Request, *, seen: bool = True) -> None:
        """Add a request that will be late or waits again. `seen`: the policy saw it before."""
        if not seen:
            self._unseen.add(request.id)
        if not request.is_late:
            request = msgspec.structs.replace(
                request, deadline_ns=NEVER_NS, merge_key=request.merge_key + LATE_KEY_SUFFIX
            )
        if request.late_until_ns < NEVER_NS:
            if len(self._expiries) > 2 * (len(self._held) + len(self._shown)) + MAX_DEAD_TIMERS:
                self._sweep()
            heappush(self._expiries, (request.late_until_ns, request.id))
            self.earliest_ns = self._expiries[0][0]
        self._hold(request)

    def _sweep(self) -> None:
        """Forget when what is not late any more is wanted no more."""
        self._expiries = [
            expiry for expiry in set(self._expiries) if expiry[1] in self._held or expiry[1] in self._queued
        ]
        heapify(self._expiries)

    def call_back(self, request: Request) -> None:
        """Withdraw from the policy a request that did not run."""
        self._shown.pop(request.id, None)
        self._hold(request)

    def remove(self, request_id: int) -> Request | None:
        """Remove a late request and return it; None if it does not wait here."""
        request = self._held.pop(request_id, None)
        if request is not None:
            self._unseen.discard(request_id)
            key = request.model, request.priority
            of_model = self._of_model[key]
            of_model.remove(request)
            if not of_model.held:
                del self._of_model[key]
        return request

    def was_seen(self, request: Request) -> bool:
        """Whether the policy saw a request before it is shown now. Call it once for each request."""
        if request.id not in self._unseen:
            return True
        self._unseen.remove(request.id)
        return False

    def pop_expired(self, now_ns: int) -> list[int]:
        """Return ids of requests whose clients stopped waiting; some may not wait here."""
        expired = []
        while self._expiries and self._expiries[0][0] <= now_ns:
            expired.append(heappop(self._expiries)[1])
        self.earliest_ns = self._expiries[0][0] if self._expiries else NEVER_NS
        return expired

    def batch_for(self, worker_id: int, start_ns: int) -> list[Request]:
        """Return the batch that the engine runs on a worker that becomes ready, late requests first; empty: none.

        Its late requests are removed; on-time requests in it stay queued. `start_ns`: time at which the worker is free.
        """
        waiting = [key for key in self._of_model if self._begins_on(key[0], worker_id)]
        waiting = [key for key in waiting if not self._fleet.models[key[0]].pipelines]
        first = self._of_model[min(waiting, key=self._rank)].held.first if waiting else None
        if first is None:
            return []
        oldest, waits = first[1], self._first_on_time(self._fleet.bookings[worker_id].hosts)
        if waits is not None and waits.priority <= oldest.priority:
            if waits.priority < oldest.priority or waits.arrival_ns < oldest.arrival_ns:
                return []
            if waits.client != oldest.client and worker_id in self._led:
                self._led.discard(worker_id)
                return []
        self._led.add(worker_id)
        batch = self._pop((oldest.model, oldest.priority), self._most_rows)
        return batch + self._beside(batch, worker_id, start_ns)

    def _first_on_time(self, hosts: frozenset[str]) -> Request | None:
        """The request that was queued first of those that are not late and could use one of these partitions."""
        uses: dict[str, bool] = {}
        for request in self._queued.values():
            if request.model not in uses:
                uses[request.model] = self._uses(request.model, hosts)
            if uses[request.model] and not request.is_late:
                return request
        return None

    def first_too_late(self, worker_id: int, start_ns: int) -> Request | None:
        """Return the oldest queued request that will be late on a worker free at `start_ns` and is served anyway."""
        first = self._first_on_time(self._fleet.bookings[worker_id].hosts)
        if first is None or first.late_until_ns <= start_ns or self._fleet.models[first.model].pipelines:
            return None
        device_class = self._fleet.bookings[worker_id].worker.device_class
        profile = self._expectations.profiles[first.model, device_class, first.shape]
        return first if start_ns + profile.expected_ns(first.rows) > first.deadline_ns else None

    def _beside(self, late: list[Request], worker_id: int, start_ns: int) -> list[Request]:
        """Requests that fill the free rows of a batch of late ones which starts then, as they would at Triton.

        They are on time with it, and stay so; or they would be late behind it, too, and are wanted all the same.
        """
        first, rows = late[0], sum(request.rows for request in late)
        most, device_class = self._most_rows(first), self._fleet.bookings[worker_id].worker.device_class
        profile, key = (
            self._expectations.profiles[first.model, device_class, first.shape],
            first.merge_key.removesuffix(LATE_KEY_SUFFIX),
        )
        beside: list[Request] = []
        for request in self._queued.values():
            if rows >= most:
                break
            if request.model != first.model or request.shape != first.shape or request.merge_key != key:
                continue
            wanted_ns = max(request.deadline_ns, request.late_until_ns)
            if rows + request.rows <= most and start_ns + profile.upper_ns(rows + request.rows) <= wanted_ns:
                beside.append(request)
                rows += request.rows
        return beside

    def to_show_for(self, worker_id: int) -> list[Request]:
        """Return a batch to show to the policy for a worker that no on-time request needs; empty: none."""
        waiting = [key for key in self._of_model if self._begins_on(key[0], worker_id)]
        waiting = [key for key in waiting if self._is_left_over(key[0], worker_id)]
        if not waiting:
            return []
        return self._show(min(waiting, key=self._rank), self._most_rows)

    def next(self) -> Request | None:
        """Return a request for an idle worker that no on-time request needs; None if there is none."""
        for key in self._of_model:
            if self._is_left_over(key[0]):
                return self._show(key, lambda _: 0)[0]
        return None

    def to_call_back(self) -> list[Request]:
        """Return late requests that the policy sees and that must be withdrawn, because on-time requests need the
        workers.
        """
        shown = self._shown = {
            request_id: late for request_id, late in self._shown.items() if request_id in self._queued
        }
        wanted = {name for name in {late.model for late in shown.values()} if not self._is_left_over(name, shown=True)}
        return [late for late in shown.values() if late.model in wanted]

    def _show(self, key: _LateKey, most_rows: Callable[[Request], int]) -> list[Request]:
        shown = self._pop(key, most_rows)
        self._shown.update((request.id, request) for request in shown)
        return shown

    def _pop(self, key: _LateKey, most_rows: Callable[[Request], int]) -> list[Request]:
        popped = self._of_model[key].pop(most_rows)
        if not self._of_model[key].held:
            del self._of_model[key]
        for request in popped:
            del self._held[request.id]
        return popped

    def _most_rows(self, request: Request) -> int:
        """The most rows of a batch of several requests like this one."""
        model = self._fleet.models[request.model]
        return min(model.merged_rows, self._fleet.takes_rows(model.name))

    def _hold(self, request: Request) -> None:
        self._held[request.id] = request
        self._of_model.setdefault((request.model, request.priority), _LateOfModel()).add(request)

    def _rank(self, key: _LateKey) -> tuple[int, int]:
        """More urgent classes first, then the one whose request is the oldest."""
        first = self._of_model[key].held.first
        return key[1], first[1].arrival_ns if first else NEVER_NS

    def _is_left_over(self, model: str, ready: int | None = None, *, shown: bool = False) -> bool:
        """Whether more workers are idle that a model can begin on than kinds of batches wait for them.

        Each kind that the policy sees, and that can be on time or is late, wants one worker: more of a kind would run
        already. `ready`: a worker that is idle, or about to be. `shown`: this model's batch is one of those kinds.
        """
        idle = {number for number in self._fleet.idle_ids if self._is_free(number) and self._begins_on(model, number)}
        if ready is not None:
            idle.add(ready)
        if not idle:
            return False
        hosts = frozenset[str]().union(*(self._fleet.bookings[number].hosts for number in idle))
        enough = len(idle) + shown
        return self._count_kinds(hosts, enough) < enough

    def _count_kinds(self, hosts: frozenset[str], most: int) -> int:
        """How many kinds of batches wait that could use a worker which hosts one of these; `most` at the most."""
        kinds: set[QueueKey] = set()
        count = 0
        for request in self._queued.values():
            kind = request.model, request.shape, request.merge_key
            if kind not in kinds and (request.deadline_ns != NEVER_NS or request.is_late):
                kinds.add(kind)
                count += self._uses(request.model, hosts)
                if count >= most:
                    break
        return count

    def _uses(self, model: str, hosts: frozenset[str]) -> bool:
        return any(part in hosts for path in self._fleet.models[model].paths for part in path.partitions)

    def _begins_on(self, model: str, worker_id: int) -> bool:
        """Whether a worker runs the first partition of one of a model's pipelines."""
        booked = self._fleet.bookings.get(worker_id)
        return booked is not None and any(
            path.partitions[0] in booked.hosts for path in self._fleet.models[model].paths
        )
