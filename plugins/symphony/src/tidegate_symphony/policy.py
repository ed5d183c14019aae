"""Symphony's deferred batch scheduling (Algorithm 1, and Appendix D for its two halves)."""

from typing import Literal

from pydantic import Field

from tidegate.api import (
    NEVER,
    AnyCommand,
    BatchTarget,
    CancelTimer,
    Commands,
    Drop,
    Gathered,
    Gathering,
    PolicyOptions,
    Profile,
    ProfileUpdated,
    QueueingPolicy,
    QueueKey,
    RequestArrived,
    RequestQueue,
    SetTimer,
    Setup,
    TimerFired,
    Worker,
    WorkerJoined,
    WorkerLost,
    ms_to_ns,
)
from tidegate_symphony.model_thread import Candidate
from tidegate_symphony.rank_thread import ReadyCandidates


class SymphonyOptions(PolicyOptions):
    """Options of `symphony`."""

    gathering: Literal["window", "keep-head"] = Field(
        default="window",
        description="window: skip requests that keep the batch below the size that the load needs; keep-head: never",
    )
    reserve_ms: float = Field(
        default=0.0, ge=0, description="Kept free before every deadline, for the way back to the client"
    )


class Symphony(QueueingPolicy):
    """A batch starts when one more request could no longer join it in time, on the idle worker of the smallest id.

    A request is dropped once it would be late even alone. Models without an SLO are served as soon as a worker is idle.
    """

    Options = SymphonyOptions

    def __init__(self, setup: Setup, options: SymphonyOptions) -> None:
        super().__init__(setup, options)
        self._gathering = Gathering(ms_to_ns(options.reserve_ms))
        self._by_window = options.gathering == "window"
        self._targets: dict[str, BatchTarget] = {}
        self._ready = ReadyCandidates()
        self._fastest: dict[str, Profile] = {}

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        """A new candidate: dispatch it, or wait for its moment."""
        commands: list[AnyCommand] = []
        self._update(now_ns, queue, commands)
        return commands

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """The GPU timer: of the schedulable candidates the one whose latest moment is closest."""
        commands: list[AnyCommand] = []
        tried: set[QueueKey] = set()
        while self.idle.is_idle(worker.id):
            key = self._ready.most_urgent(lambda key: key[0] in worker.hosts and key not in tried)
            if key is None:
                break
            tried.add(key)
            self._update(now_ns, self.queues[key], commands)
        return commands

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """The model timer: the candidate's moment has come, or has passed while it waited for a worker."""
        model, merge_key = event.key if isinstance(event.key, tuple) else ("", "")
        queue = self.queues.get((str(model), str(merge_key)))
        return self.queue_changed(event.now_ns, queue) if queue else ()

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """It may be faster than the others."""
        self._forget_plans()
        return super().on_worker_joined(event)

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """It may have been faster than the others: without it every moment comes sooner."""
        worker = self.idle.get(event.worker_id)
        super().on_worker_lost(event)
        return self._plan_anew(event.now_ns, worker.hosts if worker else ())

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Every moment planned with the old expectation is planned anew."""
        super().on_profile_updated(event)
        return self._plan_anew(event.now_ns, (event.profile.partition,))

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Count it towards its model's rate, then queue it."""
        target = self._targets.get(event.request.model)
        if target is None:
            target = self._targets[event.request.model] = BatchTarget(event.now_ns)
        target.rate.observe(event.now_ns, event.request.rows)
        return super().on_request_arrived(event)

    def _update(self, now_ns: int, queue: RequestQueue, commands: list[AnyCommand]) -> None:
        """Dispatch what is schedulable now; leave a candidate that waits for its moment, or for a worker."""
        model = queue.model.name
        while queue and self.idle.kinds_hosting(model):
            profile = self._fastest_profile(model)
            if self._gathering.is_hopeless(queue.head, profile, now_ns):
                commands.extend(Drop(request.id, "deadline") for request in self.take(queue, 1))
                continue
            batch = self._gather(queue, profile, now_ns)
            assert batch is not None, "a head that is not hopeless is a batch by itself"
            candidate = Candidate.of(batch, queue, profile, now_ns)
            if candidate.exec_ns > now_ns:  # not schedulable before its moment
                self._ready.discard(queue.key)
                commands.append(SetTimer(queue.key, candidate.exec_ns))
                return
            if not self._grant(now_ns, queue, commands):  # schedulable until it ceases to be valid
                self._ready.put(queue.key, candidate)
                expires = candidate.latest_ns < NEVER
                commands.append(SetTimer(queue.key, candidate.latest_ns + 1) if expires else CancelTimer(queue.key))
                return
        self._ready.discard(queue.key)
        commands.append(CancelTimer(queue.key))

    def _gather(self, queue: RequestQueue, profile: Profile, now_ns: int) -> Gathered | None:
        """The batch that would start now under this profile; None where not even the head is in time."""
        model = queue.model
        if self._by_window and model.slo_ns is not None:
            workers = self.idle.count_hosting(model.name)
            slo_ns = model.slo_ns - self._gathering.reserve_ns
            target = self._targets[model.name].rows(now_ns, profile, slo_ns, workers)
            if batch := self._gathering.window(queue, profile, now_ns, target):
                return batch
        return self._gathering.keep_head(queue, profile, now_ns)

    def _grant(self, now_ns: int, queue: RequestQueue, commands: list[AnyCommand]) -> bool:
        """Give the queue's batch to the idle worker of the smallest id on which it is in time; False if none is."""
        for worker in self.idle.peek_each_kind(queue.model.name):
            batch = self._gather(queue, self.profile(queue.model.name, worker), now_ns)
            if batch is not None:
                commands.append(self.dispatch(now_ns, queue, batch.count, worker, start=batch.start))
                return True
        return False

    def _fastest_profile(self, model: str) -> Profile:
        """The best that any worker here could do: what plans are made with, and what decides that all is lost."""
        if model not in self._fastest:
            tables = [self.profiles[model, kind].table_ns for kind in sorted(self.idle.kinds_hosting(model))]
            self._fastest[model] = Profile(
                model, "fastest", tuple(min(column) for column in zip(*tables, strict=False))
            )
        return self._fastest[model]

    def _plan_anew(self, now_ns: int, models: tuple[str, ...]) -> Commands:
        self._forget_plans()
        commands: list[AnyCommand] = []
        for queue in [queue for queue in self.queues.values() if queue.model.name in models]:
            self._update(now_ns, queue, commands)
        return commands

    def _forget_plans(self) -> None:
        """The workers or their profiles changed."""
        self._fastest.clear()
        for target in self._targets.values():
            target.forget()
