"""Orloj's scheduler (Algorithm 1): batch size by urgency and queue length, requests by priority."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    AnyEvent,
    Batch,
    CancelTimer,
    Commands,
    Dispatch,
    Drop,
    LatencyDistributionUpdated,
    Model,
    PolicyOptions,
    ProfileUpdated,
    QueueKey,
    Request,
    RequestArrived,
    SetTimer,
    Setup,
    Stage,
    Worker,
    ms_to_ns,
)
from tidegate.toolkit import QueueingPolicy
from tidegate_orloj.applications import Applications, BatchCurves, BatchKind, WorkBudget
from tidegate_orloj.pending import Ints, Mask, PendingQueue
from tidegate_orloj.priority import Cost

ONE_STEP: tuple[Cost, ...] = ((1.0, 1.0),)
"""Cost function of 1 for a missed deadline."""


class CostStep(PolicyOptions):
    """A step of a piecewise-constant cost function."""

    after: PositiveFloat = Field(description="Start of the step, as a multiple of the time from arrival to deadline")
    cost: PositiveFloat = Field(description="Cost of the request from then on")


class OrlojOptions(PolicyOptions):
    """Options of the policy `orloj`."""

    delay_rate: float | None = Field(
        default=None,
        ge=1e-9,
        le=1,
        description="Rate b of the exponential anticipated delay, per ms; default: 0.1 over the mean stand-alone time",
    )
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(
        default=[],
        description="Batch sizes in rows to consider; default: 2, 3, 4, 6, 8, 12, ... and the largest",
    )
    batch_selection: Literal["alike", "worth", "earliest", "latest"] = Field(
        default="alike",
        description="Choice among batches that can be filled: highest priority per time (worth), the same also among "
        "batches without the slowest applications (alike), earliest or latest first deadline",
    )
    costs: dict[str, list[CostStep]] = Field(
        default={}, description="Cost of lateness by model, in steps; default: 1 from the deadline on"
    )

    @model_validator(mode="after")
    def _rise(self) -> Self:
        for model, steps in self.costs.items():
            if not steps or any(b.after <= a.after or b.cost <= a.cost for a, b in pairwise(steps)):
                raise ValueError(f"costs: {model!r} needs steps, of which `after` and `cost` rise")
        return self


@dataclass(frozen=True, slots=True)
class BatchCandidate:
    """Batch that a queue would run on one worker."""

    places: NDArray[np.intp]
    """Places of its requests in the queue."""
    worth: float
    """Sum of the priorities of its requests."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Batches of a size that can be filled with requests that are expected to be on time."""

    size: BatchKind
    curves: BatchCurves
    feasible: Mask
    """The requests that are, in line i in batches that hold no slower group than the i-th."""
    lines: NDArray[np.intp]
    """Whether each of these batches can be filled."""


class Orloj(QueueingPolicy[PendingQueue]):
    """Orloj: an idle worker takes the most valuable requests at once, in a batch size that meets their deadlines.

    A request is dropped once it is expected to be late even alone on the fastest worker.
    """

    Options = OrlojOptions
    options: OrlojOptions
    best_effort = True

    def __init__(self, setup: Setup, options: OrlojOptions) -> None:
        super().__init__(setup, options)
        self._times = {(times.model, times.device_class, times.app): times for times in setup.latency_distributions}
        self._applications: dict[tuple[str, str], Applications] = {}
        self._budget = WorkBudget()
        self._rows = {model.name: self._rows_of(model) for model in setup.models}
        """The rows of the batches of several requests that are considered, by model."""
        self._steps = {name: tuple((step.after, step.cost) for step in steps) for name, steps in options.costs.items()}
        self._kinds: dict[str, list[str]] = {}
        """The kinds of the workers that host a model, as far as they were asked for."""

    def migrate(self, setup: Setup) -> Self:
        """Return the next policy, with the frequencies of applications and current distributions."""
        follower = super().migrate(setup)
        follower._times = {**self._times, **follower._times}
        for (model, shape), known in self._applications.items():
            if model in follower.models and any(profile.partition == model for profile in setup.profiles):
                follower._applications_of(model, shape).inherit(known)
        return follower

    def handle(self, event: AnyEvent) -> Commands:
        """Handle an event with a bounded amount of work."""
        self._budget.renew()
        return super().handle(event)

    def new_queue(self, key: QueueKey, model: Model) -> PendingQueue:
        """Return an empty queue for the applications of its model and shape."""
        return PendingQueue(
            key,
            model,
            self._applications_of(model.name, key[1]),
            self._steps.get(model.name, ONE_STEP),
            no_slo_max_deferral_ns=self.setup.no_slo_max_deferral_ns,
        )

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Count the request towards its application's frequency, and dispatch it if a worker is idle."""
        request = event.request
        is_new = not self.is_readmitted(request)
        queue = self.enqueue(request)
        applications = queue.applications
        if is_new:
            applications.count(request)
        if self.idle.peek(request.model):
            return self.queue_changed(event.now_ns, queue)
        kinds = self._kinds_of(request.model)
        if kinds and request.deadline_ns != NEVER_NS:
            last_ns = int(queue.due_ns[-1]) - applications.quickest_alone_ns(kinds, request)
            if last_ns < queue.wake_ns:
                queue.wake_ns = last_ns
                return [SetTimer(queue.key, max(event.now_ns, last_ns + 1))]
        return ()

    def on_latency_distribution_updated(self, event: LatencyDistributionUpdated) -> Commands:
        """Use the new distribution for batches of the model."""
        times = event.times
        self._times[times.model, times.device_class, times.app] = times
        for (model, _), applications in self._applications.items():
            if model == times.model:
                applications.tell_times(times)
        return self._look_again(event.now_ns, (times.model,))

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Use the new profile for requests without an application."""
        known = self._applications.get((event.profile.partition, event.profile.shape))
        if known:
            known.tell_profile(event.profile)
        return super().on_profile_updated(event)

    def forget_plans(self, partitions: Collection[str], shape: str | None = None) -> None:
        """Discard plans after a change of workers or profiles."""
        super().forget_plans(partitions, shape)
        for partition in partitions:
            self._kinds.pop(partition, None)

    def queue_changed(self, now_ns: int, queue: PendingQueue) -> Commands:
        """Dispatch to idle workers, drop hopeless requests, and set a timer for the next one."""
        commands = self._drop_hopeless(now_ns, queue)
        granted = True
        while granted and queue:
            if (
                self._budget.left <= 0
            ):  # many workers are idle: the others are given something at once, in another event
                queue.wake_ns = now_ns
                return [*commands, SetTimer(queue.key, now_ns)]
            granted = False
            for worker in self.idle.peek_each_kind(queue.model.name):
                if candidate := self._candidate(now_ns, queue, worker.device_class):
                    commands.append(self._run(now_ns, queue, candidate, worker))
                    granted = True
                    break
        return [*commands, *self._wake(queue)]

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Dispatch the most valuable batch, among the most urgent queues if there are very many."""
        commands: list[AnyCommand] = []
        found: list[tuple[float, int, QueueKey, BatchCandidate]] = []
        for queue in self._most_urgent(queue for queue in self.queues.values() if queue.model.name in worker.hosts):
            commands += self._drop_hopeless(now_ns, queue)
            if queue and (candidate := self._candidate(now_ns, queue, worker.device_class)):
                found.append((-candidate.worth, queue.head.arrival_ns, queue.key, candidate))
            if found and self._budget.left <= 0:
                break
        if not found or not self.idle.is_idle(worker.id):
            return commands
        _, _, key, candidate = min(found, key=lambda entry: entry[:3])
        queue, start_ns = self.queues[key], self.start_ns(now_ns, worker)
        if start_ns > now_ns:  # it is about to be idle, perhaps sooner than planned: more may be on time then
            behind = self._candidate(start_ns, queue, worker.device_class)
            if behind is None or not np.array_equal(behind.places, candidate.places):
                return commands
        commands.append(self._run(now_ns, queue, candidate, worker))
        return [*commands, *self.queue_changed(now_ns, queue)]

    def _look_again(self, now_ns: int, partitions: tuple[str, ...], shape: str | None = None) -> Commands:
        """Look at what waits for these partitions, the most urgent where there is very much: timers see to the rest."""
        affected = (
            queue
            for queue in self.queues.values()
            if queue.model.name in partitions and (shape is None or queue.shape == shape)
        )
        commands: list[AnyCommand] = []
        for queue in self._most_urgent(affected):
            commands += self.queue_changed(now_ns, queue)
            if self._budget.left <= 0:
                break
        return commands

    def _most_urgent(self, queues: Iterable[PendingQueue]) -> Iterator[PendingQueue]:
        """The most urgent first, as many as the work for an event allows at most."""
        for queue in nsmallest(WorkBudget.UNITS // WorkBudget.QUEUE, queues, key=lambda each: each.urgency):
            self._budget.spend(WorkBudget.QUEUE)
            yield queue

    # Algorithm 1 ----------------------------------------------------------------------------------------------------

    def _candidate(self, start_ns: int, queue: PendingQueue, device_class: str) -> BatchCandidate | None:
        """The batch that a queue would run from then on on a worker of a kind; None where nothing would be on time."""
        if len(queue) == 1:
            return self._alone(start_ns, queue, device_class)
        found = list(self._found(start_ns, queue, device_class))
        if not found:
            return None
        if self.options.batch_selection in ("alike", "worth"):
            candidates = [self._of_most_worth(queue, start_ns, each) for each in found]
            return max(candidates, key=lambda each: (each.worth, len(each.places)))
        sign = 1 if self.options.batch_selection == "earliest" else -1

        def first_due(each: _Found) -> tuple[int, int]:
            return sign * int(queue.due_ns[each.feasible[each.lines[-1]]].min()), -each.size.rows

        return self._of_most_worth(queue, start_ns, min(found, key=first_due))

    def _alone(self, start_ns: int, queue: PendingQueue, device_class: str) -> BatchCandidate | None:
        """The only request of a queue: who has a merge key to itself is soon looked at."""
        if queue.due_ns[0] - start_ns < queue.alone_ns(device_class)[0]:
            return None
        size = BatchKind(device_class, int(self._next_rows(queue)[0]), 0)
        self._budget.spend(WorkBudget.SIZE)
        known = queue.applications.curves([size])
        if size not in known:
            return None
        return BatchCandidate(np.zeros(1, np.intp), float(queue.scores(size, known[size].curve, start_ns)[0, 0]))

    def _next_rows(self, queue: PendingQueue) -> Ints:
        """The rows for which curves are drawn that stand for each request alone: its own or somewhat more."""
        if queue.rows == len(queue):
            return queue.rows_each
        steps = np.array([1, *self._rows[queue.model.name], queue.model.max_rows])
        next_rows: Ints = steps[np.minimum(np.searchsorted(steps, queue.rows_each), len(steps) - 1)]
        return next_rows

    def _found(self, start_ns: int, queue: PendingQueue, device_class: str) -> Iterator[_Found]:
        """Sizes of batches that can be filled: a single request, and numbers of rows."""
        groups, rows_each, left_ns = queue.groups(device_class), queue.rows_each, queue.due_ns - start_ns
        alone = left_ns >= queue.alone_ns(device_class)
        sizes = self._rows[queue.model.name]
        singles = {1: alone}
        if queue.rows != len(queue):
            next_rows = self._next_rows(queue)
            singles = {int(rows): alone & (next_rows == rows) for rows in np.unique(next_rows)}
        alone_sizes = {
            BatchKind(device_class, rows, 0): feasible for rows, feasible in singles.items() if feasible.any()
        }
        filled_sizes = [BatchKind(device_class, rows, rows - 1) for rows in sizes if rows <= queue.rows]
        self._budget.spend(WorkBudget.SIZE * (len(alone_sizes) + len(filled_sizes)))
        known = queue.applications.curves([*alone_sizes, *filled_sizes]) if alone_sizes else {}
        present, ranks = np.unique(groups), queue.applications.groups(device_class).ranks
        for size, curves in known.items():
            if not size.others:
                yield _Found(size, curves, alone_sizes[size][None, :], np.zeros(1, np.intp))
                continue
            lines = present if self.options.batch_selection == "alike" else np.array([ranks.argmax()])
            feasible = curves.mean_ns[:, groups] <= left_ns
            feasible &= ranks[groups] <= ranks[:, None]
            if queue.rows != len(queue):
                feasible &= rows_each <= size.rows
            filled = lines[feasible[lines] @ rows_each >= size.rows]
            if len(filled):
                yield _Found(size, curves, feasible, filled)

    @staticmethod
    def _of_most_worth(queue: PendingQueue, start_ns: int, found: _Found) -> BatchCandidate:
        """Return the batch of a size whose requests are worth most together."""
        scores = queue.scores(found.size, found.curves.curve, start_ns)
        most_rows = found.size.rows if found.size.others else 1
        if queue.rows == len(queue):
            rest = len(queue) - most_rows
            feasible = np.where(found.feasible[found.lines], scores[found.lines], -np.inf)
            worth = np.partition(feasible, rest, axis=1)[:, rest:].sum(axis=1)
            line = found.lines[int(worth.argmax())]
            return BatchCandidate(queue.best(scores[line], found.feasible[line], most_rows), float(worth.max()))
        places = [queue.best(scores[line], found.feasible[line], most_rows) for line in found.lines]
        sums = [float(scores[line, members].sum()) for line, members in zip(found.lines, places, strict=True)]
        at = sums.index(max(sums))
        return BatchCandidate(places[at], sums[at])

    def _last_starts_ns(self, queue: PendingQueue) -> Ints:
        """The instant after which each request is expected to be late even alone on the quickest worker."""
        kinds = self._kinds_of(queue.model.name)
        quickest_ns: Ints = np.min([queue.alone_ns(device_class) for device_class in kinds], axis=0)
        return queue.due_ns - quickest_ns

    def _drop_hopeless(self, now_ns: int, queue: PendingQueue) -> list[AnyCommand]:
        if not queue or not self._kinds_of(queue.model.name):
            return []
        commands: list[AnyCommand] = []
        dropped = []
        for request in [queue.request_at(place) for place in np.flatnonzero(self._last_starts_ns(queue) < now_ns)]:
            if worker := self._idle_on_time(now_ns, queue, request):
                place = next(place for place in range(len(queue)) if queue.request_at(place) is request)
                commands.append(self._run(now_ns, queue, BatchCandidate(np.array([place]), 0.0), worker))
            else:
                dropped.append(request)
        if dropped:
            self._take(queue, dropped)
        return [*commands, *(Drop(request.id, "deadline_unreachable") for request in dropped)]

    def _idle_on_time(self, now_ns: int, queue: PendingQueue, request: Request) -> Worker | None:
        """An idle worker that answers a request on time by its profile: what an application takes is less sure.

        It is learned from few stages, of which one may have stalled. An idle worker loses nothing by trying.
        """
        for worker in self.idle.peek_each_kind(request.model):
            upper_ns = self.profile(request.model, worker, queue.shape).upper_ns(request.rows)
            if self.start_ns(now_ns, worker) == now_ns and now_ns + upper_ns <= request.deadline_ns:
                return worker
        return None

    def _run(self, now_ns: int, queue: PendingQueue, candidate: BatchCandidate, worker: Worker) -> Dispatch:
        """Dispatch it, planned to take what a batch of these very requests is expected to."""
        requests = [queue.request_at(place) for place in candidate.places]
        members = [int(queue.app[place]) for place in candidate.places]
        rows = sum(request.rows for request in requests)
        upper_ns = ms_to_ns(queue.applications.expected_ms(worker.device_class, rows, members))
        stage = Stage(worker.id, queue.model.name, self.start_ns(now_ns, worker), max(1, upper_ns))
        self._take(queue, requests)
        self.idle.occupy(worker.id)
        ids = tuple(request.id for request in requests)
        return Dispatch(Batch(self.new_batch_id(), queue.model.name, ids, (stage,)))

    def _wake(self, queue: PendingQueue) -> Commands:
        """Set the timer for when the next of what waits is hopeless."""
        last_ns = NEVER_NS
        if queue and self._kinds_of(queue.model.name):
            dated = queue.due_ns < NEVER_NS
            if dated.any():
                last_ns = int(self._last_starts_ns(queue)[dated].min())
        if last_ns == queue.wake_ns:
            return ()
        queue.wake_ns = last_ns
        return [CancelTimer(queue.key) if last_ns == NEVER_NS else SetTimer(queue.key, last_ns + 1)]

    # Books ----------------------------------------------------------------------------------------------------------

    def _take(self, queue: PendingQueue, requests: Iterable[Request]) -> None:
        for request in requests:
            queue.remove(request.id)
            del self._queue_of[request.id]
        self._forget_if_empty(queue)

    def _kinds_of(self, model: str) -> list[str]:
        kinds = self._kinds.get(model)
        if kinds is None:
            kinds = self._kinds[model] = sorted(self.idle.kinds_hosting(model))
        return kinds

    def _applications_of(self, model: str, shape: str) -> Applications:
        known = self._applications.get((model, shape))
        if known is None:
            known = self._applications[model, shape] = Applications(
                model, shape, self.options.delay_rate, quantile=self.quantile, budget=self._budget
            )
            for profile in self.profiles.values():
                if (profile.partition, profile.shape) == (model, shape):
                    known.tell_profile(profile)
            for times in self._times.values():
                if times.model == model:
                    known.tell_times(times)
        return known

    def _rows_of(self, model: Model) -> list[int]:
        """The rows that batches may have: those that were asked for, or about half as much again each time."""
        largest = model.merged_rows
        usual = [rows for power in range(1, largest.bit_length()) for rows in (1 << power, 3 << (power - 1))]
        return sorted({rows for rows in [*(self.options.batch_sizes or [*usual, largest])] if 1 < rows <= largest})
