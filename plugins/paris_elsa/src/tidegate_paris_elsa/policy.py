"""ELSA: each request goes to the smallest slice on which it is on time (PARIS and ELSA, section IV-C, Algorithm 2)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from pydantic import Field

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    Batch,
    Commands,
    Dispatch,
    Drop,
    Policy,
    PolicyOptions,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Stage,
    Worker,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    queue_key,
)
from tidegate.schemas import Mig, Mps, WholeDevice
from tidegate_paris_elsa.worker_queue import QueuedBatch, WorkerPool, WorkerQueue

_COMPUTE_SLICES = re.compile(r"(\d+)[cg]\.")
"""The first number of `3g.40gb`; of `1c.3g.40gb` too, which is one of the three of such an instance."""


def smallest_first(workers: Sequence[tuple[Worker, Profile]]) -> list[int]:
    """Return the positions of workers in the order in which ELSA tries them; each has the profile of one model there.

    MIG instances of one product are compared by size, and so are MPS shares of devices or of instances of one profile;
    the whole device is largest. Otherwise workers are compared by the latency of the largest batch: a slower one counts
    as smaller.
    """
    sizes = [_size(worker) for worker, _ in workers]
    units = {unit for unit, _ in sizes if unit}
    products = {worker.device.product if worker.device else "" for worker, _ in workers}
    comparable = len(units) <= 1 and len(products) == 1 and "?" not in units

    def rank(place: int) -> tuple[float, int, int]:
        worker, profile = workers[place]
        return sizes[place][1] if comparable else 0.0, -profile.expected_ns(profile.max_rows), worker.id

    return sorted(range(len(workers)), key=rank)


def _size(worker: Worker) -> tuple[str, float]:
    """The unit of a worker's share of its device, and how many of those it has; `?`: not known."""
    match worker.slice:
        case Mig(profile=profile):
            found = _COMPUTE_SLICES.match(profile)
            return ("g", float(found[1])) if found else ("?", 0.0)
        case Mps(percent=percent, instance=instance):
            return f"% of {instance.profile}" if instance else "%", float(percent)
        case WholeDevice():
            return "", inf


class ElsaOptions(PolicyOptions):
    """Options of the policy `elsa`."""

    alpha: float = Field(
        default=1.0, gt=0, le=100, description="Safety factor on the required time of a request (the paper's alpha)"
    )
    beta: float = Field(
        default=1.0, ge=0, le=100, description="Factor on the request's own execution time within it (the paper's beta)"
    )
    allow_batching: bool = Field(
        default=True,
        description="Whether requests that wait for one worker share batches while all are on time; false: each runs "
        "by itself (the paper's)",
    )
    drop_late: bool = Field(
        default=True,
        description="Whether a request that is late on every slice is dropped; false: nothing is dropped (the paper's)",
    )


class Elsa(Policy):
    """ELSA: a queue for each worker; a request joins one when it arrives, and runs there in order.

    It joins the smallest slice on which it is on time, among equal ones that with the least work (step A); if it is
    late everywhere, or has no deadline, the worker that would finish it first (step B). Departures from the paper: a
    request that is late there, too, is dropped, at its arrival or when its turn has come (`drop_late`); requests that
    wait for one worker share batches (`allow_batching`).
    """

    Options = ElsaOptions
    options: ElsaOptions
    supports_pipelined_dispatch = True

    def __init__(self, setup: Setup, options: ElsaOptions) -> None:
        super().__init__(setup, options)
        self.best_effort = not options.drop_late
        self._models = {model.name: model for model in setup.models}
        self._profiles = {profile.key: profile for profile in setup.profiles}
        self._pools: dict[tuple[tuple[str, ...], str], WorkerPool] = {}
        self._pool_of: dict[int, WorkerPool] = {}
        self._lines: dict[int, WorkerQueue] = {}
        self._task_of: dict[int, tuple[WorkerQueue, QueuedBatch]] = {}
        """Where each request waits."""
        self._homeless: dict[int, Request] = {}
        """Requests whose model no worker hosts at present."""
        self._smallest_first: dict[str, list[WorkerPool]] = {}
        for worker in setup.workers:
            self._join(worker)

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Add the request to a worker's queue."""
        return self._place(event.now_ns, event.request)

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Remove the request from its queue."""
        if self._homeless.pop(event.request_id, None):
            return ()
        line, task = self._task_of.pop(event.request_id)
        line.leave(task, event.request_id, self._profile(task, line.worker))
        self._pool_of[line.worker.id].changed(event.now_ns, line)
        return ()

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Dispatch the first batch of the worker's queue."""
        line = self._lines.get(event.worker_id)
        if line is None:
            return ()
        line.ready, line.ends_ns = True, event.free_ns
        if line.is_empty:
            self._take_over(event.now_ns, line)
        return list(self._run_next(event.now_ns, line))

    def on_worker_delayed(self, event: WorkerDelayed) -> Commands:
        """Update the expected wait at the worker, whose stage takes longer than planned."""
        if line := self._lines.get(event.worker_id):
            line.ready = False
            self._pool_of[event.worker_id].changed(event.now_ns, line)
        return ()

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Distribute again the waiting requests that the new worker could serve, oldest first."""
        self._join(event.worker)
        waiting = [
            request
            for line in self._lines.values()
            for task in line
            for request in task.requests.values()
            if request.model in event.worker.hosts
        ]
        for request in waiting:
            line, task = self._task_of.pop(request.id)
            line.leave(task, request.id, self._profile(task, line.worker))
            self._pool_of[line.worker.id].changed(event.now_ns, line)
        homeless = [request for request in self._homeless.values() if request.model in event.worker.hosts]
        return self._place_all(event.now_ns, [*waiting, *homeless])

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Handle the loss of a worker: its queued requests join other queues."""
        line = self._lines.pop(event.worker_id, None)
        if line is None:
            return ()
        self._pool_of.pop(event.worker_id).leave(line)
        self._smallest_first.clear()
        return self._place_all(event.now_ns, [request for task in line for request in task.requests.values()])

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Use the new profile from now on."""
        self._profiles[event.profile.key] = event.profile
        if not event.profile.shape:
            self._smallest_first.pop(event.profile.partition, None)
        return ()

    # Algorithm 2 ----------------------------------------------------------------------------------------------------

    def _choose(self, now_ns: int, request: Request) -> tuple[WorkerQueue, int] | None:
        """The line that a request joins, and when it is expected to end; None where no worker hosts its model."""
        alpha, beta = self.options.alpha, self.options.beta
        drops_late = self.options.drop_late
        dated, left_ns = request.deadline_ns != NEVER_NS, request.deadline_ns - now_ns
        earliest_ns, quickest = NEVER_NS, None
        for pool in self._pools_of(request.model):
            if (found := pool.least_wait(now_ns)) is None:
                continue
            wait_ns, line = found
            profile = self._profiles[request.model, pool.like.device_class, request.shape]
            ends_ns = wait_ns + profile.expected_ns(request.rows)
            fits = left_ns > alpha * (wait_ns + beta * profile.upper_ns(request.rows))
            if dated and fits and (ends_ns <= left_ns or not drops_late):
                return line, now_ns + ends_ns
            if ends_ns < earliest_ns:
                earliest_ns, quickest = ends_ns, line
        return None if quickest is None else (quickest, now_ns + earliest_ns)

    def _place(self, now_ns: int, request: Request) -> Commands:
        chosen = self._choose(now_ns, request)
        if chosen is None:
            self._homeless[request.id] = request
            return ()
        line, ends_ns = chosen
        task = self._joined(now_ns, line, request) if self.options.allow_batching else None
        if task is None:
            if self.options.drop_late and ends_ns > request.deadline_ns:
                return [Drop(request.id, "deadline_unreachable")]
            task = QueuedBatch(queue_key(request, self._models[request.model]), request)
            line.push(task, self._profile(task, line.worker))
        self._task_of[request.id] = line, task
        if line.ready:
            return [self._run(now_ns, line, task)]
        self._pool_of[line.worker.id].changed(now_ns, line)
        return ()

    def _place_all(self, now_ns: int, requests: Iterable[Request]) -> Commands:
        oldest_first = sorted(requests, key=lambda request: (request.arrival_ns, request.id))
        for request in oldest_first:
            self._task_of.pop(request.id, None)
            self._homeless.pop(request.id, None)
        return [command for request in oldest_first for command in self._place(now_ns, request)]

    # Workers that hang, of which the paper does not speak ------------------------------------------------------------

    def _take_over(self, now_ns: int, line: WorkerQueue) -> None:
        """Move the first task of a worker that is late by more than the task takes here into an idle worker's line."""
        for pool in self._pools.values():
            pool.look_again(now_ns)
            for stuck in pool.stuck:
                task = stuck.first
                if task.key[0] not in line.worker.hosts:
                    continue
                profile = self._profile(task, line.worker)
                if now_ns - stuck.ends_ns > profile.expected_ns(task.rows):
                    stuck.remove(task, self._profile(task, stuck.worker))
                    pool.changed(now_ns, stuck)
                    line.push(task, profile)
                    for request_id in task.requests:
                        self._task_of[request_id] = line, task
                    return

    # Merging, which the paper does not do ---------------------------------------------------------------------------

    def _joined(self, now_ns: int, line: WorkerQueue, request: Request) -> QueuedBatch | None:
        """The last task of a line, with a request that may share its batch; None where that would not help."""
        if line.is_empty:
            return None
        task, model = line.last, self._models[request.model]
        rows = task.rows + request.rows
        if task.key != queue_key(request, model) or rows > model.merged_rows:
            return None
        profile = self._profile(task, line.worker)
        together_ns, before_ns = profile.expected_ns(rows), profile.expected_ns(task.rows)
        if together_ns >= before_ns + profile.expected_ns(request.rows):
            return None
        begins_ns = max(now_ns, line.ends_ns) + line.queued_ns - before_ns
        if self.options.drop_late and begins_ns + together_ns > request.deadline_ns:
            return None
        due_ns = task.due_ns
        on_time = begins_ns + profile.upper_ns(rows) <= due_ns
        if not on_time and begins_ns + profile.upper_ns(task.rows) <= due_ns:
            return None
        line.join(task, request, profile)
        return task

    # Books ----------------------------------------------------------------------------------------------------------

    def _run_next(self, now_ns: int, line: WorkerQueue) -> Iterator[AnyCommand]:
        """Dispatch the first batch that is on time; what is late here finds another worker, or is dropped."""
        late: list[Request] = []
        while not line.is_empty:
            task = line.first
            late += self._unloaded(now_ns, line, task)
            if task.requests:
                yield self._run(now_ns, line, task)
                break
        self._pool_of[line.worker.id].changed(now_ns, line)
        for request in late:
            yield from self._place(now_ns, request)

    def _unloaded(self, now_ns: int, line: WorkerQueue, task: QueuedBatch) -> list[Request]:
        """The requests that would be late in the batch if it ran now, which leave it."""
        profile, late = self._profile(task, line.worker), []
        start_ns = max(now_ns, line.ends_ns)
        while self.options.drop_late and task.requests and start_ns + profile.expected_ns(task.rows) > task.due_ns:
            request = min(task.requests.values(), key=lambda each: (each.deadline_ns, each.id))
            del self._task_of[request.id]
            line.leave(task, request.id, profile)
            late.append(request)
        return late

    def _run(self, now_ns: int, line: WorkerQueue, task: QueuedBatch) -> Dispatch:
        worker, model = line.worker, task.key[0]
        profile = self._profile(task, worker)
        line.remove(task, profile)
        for request_id in task.requests:
            del self._task_of[request_id]
        start_ns = max(now_ns, line.ends_ns)
        line.ready, line.ends_ns = False, start_ns + profile.expected_ns(task.rows)
        self._pool_of[worker.id].changed(now_ns, line)
        stage = Stage(worker.id, model, start_ns, profile.upper_ns(task.rows))
        return Dispatch(Batch(self.new_batch_id(), model, tuple(task.requests), (stage,)))

    def _join(self, worker: Worker) -> None:
        key = worker.hosts, worker.device_class
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = WorkerPool(worker)
        self._pool_of[worker.id] = pool
        self._lines[worker.id] = pool.join(worker)
        self._smallest_first.clear()

    def _profile(self, task: QueuedBatch, worker: Worker) -> Profile:
        model, shape, _ = task.key
        return self._profiles[model, worker.device_class, shape]

    def _pools_of(self, model: str) -> list[WorkerPool]:
        """The pools that host a model, smallest slices first."""
        known = self._smallest_first.get(model)
        if known is None:
            pools = [pool for pool in self._pools.values() if pool.count and model in pool.hosts]
            order = smallest_first([(pool.like, self._profiles[model, pool.like.device_class, ""]) for pool in pools])
            known = self._smallest_first[model] = [pools[place] for place in order]
        return known
