"""Symphony's deferred batch scheduling (Algorithm 1, and Appendix D for its two halves)."""

from collections.abc import Collection, Sequence
from math import inf
from typing import Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    AnyEvent,
    CancelTimer,
    Commands,
    Drop,
    LatencyDistributionUpdated,
    Model,
    PolicyOptions,
    Profile,
    ProfileKey,
    ProfileUpdated,
    QueueKey,
    RequestArrived,
    SetTimer,
    Setup,
    StageFinished,
    TimerLatencyUpdated,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    ms_to_ns,
    queue_key,
)
from tidegate.control.settings import TuningOptions
from tidegate.toolkit import ArrivalRate, FormedBatch, Gathering, QueueingPolicy
from tidegate_symphony.applications import POINTS_PER_EVENT, Applications, SimilarRequests
from tidegate_symphony.autoscaler import Autoscaler
from tidegate_symphony.batch_selection import SelectedBatch
from tidegate_symphony.latency_bounds import LatencyBounds, QueueOutlook
from tidegate_symphony.model_thread import Candidate, ModelShape, ModelThread
from tidegate_symphony.rank_thread import Precedence, ReadyCandidates
from tidegate_symphony.required_batch_size import QueueLoad, RequiredBatchSize
from tidegate_symphony.worker_headroom import WorkerHeadroom

TRIED_NS = NEVER_NS // 4
"""Offset in ns by which batches that may miss their deadline rank behind others, before those without a deadline."""


class SymphonyOptions(PolicyOptions):
    """Options of the policy `symphony`."""

    batch_formation: Literal["skip_head", "keep_head"] = Field(
        default="skip_head",
        description="Whether requests are skipped that keep the batch below the size that the load needs (skip_head) "
        "or never (keep_head)",
    )
    deferral: Literal["adaptive", "frontrun"] = Field(
        default="adaptive",
        description="Waiting of a batch: until no further request could join in time (frontrun, the paper's); or "
        "less, if it has the rows that the load needs or a larger batch would save less time than it "
        "costs (adaptive)",
    )
    objective: Literal["requests", "weighted", "fair"] = Field(
        default="requests",
        description="adaptive: what goes first while requests are dropped: batches with more requests for the worker "
        "time, so that more requests are on time (requests), the same with `weights` (weighted), or the most urgent "
        "batch, so that slow models lose no more than others (fair)",
    )
    weights: dict[str, PositiveFloat] = Field(
        default={}, description="`objective: weighted`: worth of a request on time, by model; default: 1"
    )
    pack_workers: bool = Field(
        default=False,
        description="adaptive: whether batches also wait while workers are idle, to use few workers at light load; "
        "latency then approaches the SLO",
    )
    contention_weight: float = Field(
        default=5.0, gt=0, description="adaptive: value of an idle worker to each other model"
    )
    advice_every_s: float = Field(
        default=10.0, ge=0, description="Seconds between two recommendations on the number of workers; 0: none"
    )
    max_miss_rate: float = Field(
        default=0.01, ge=0, lt=1, description="Fraction of lost requests that needs no more workers"
    )
    deadline_margin_ms: float = Field(
        default=0.0, ge=0, description="Time in ms reserved before every deadline for the response to the client"
    )

    @model_validator(mode="after")
    def _weighs(self) -> Self:
        if bool(self.weights) != (self.objective == "weighted"):
            raise ValueError("weights: `objective: weighted` needs them, and no other objective has them")
        if self.weights and self.deferral != "adaptive":
            raise ValueError("objective: weighted needs `deferral: adaptive`; frontrun ranks batches by urgency alone")
        return self


class Symphony(QueueingPolicy[ModelThread]):
    """Symphony: a batch starts when it is as large as the load needs, or when no further request could join it in time.

    It starts on the idle worker with the smallest id. A request is dropped once it would be late even alone and much
    faster than expected. Models without an SLO are served as soon as a worker is idle.
    """

    Options = SymphonyOptions

    def __init__(self, setup: Setup, options: SymphonyOptions) -> None:
        super().__init__(setup, options)
        self._gathering = Gathering(ms_to_ns(options.deadline_margin_ms), fills=True)
        self._by_window = options.batch_formation == "skip_head"
        self._adapts = options.deferral == "adaptive"
        self._chooses = self._by_window and self._adapts
        self._by_density = self._adapts and options.objective != "fair"
        self._weights = options.weights
        self._contention = options.contention_weight
        self._consolidates = options.pack_workers
        self._slack_ns = setup.timer_latency_ns
        self._loads: dict[ModelShape, QueueLoad] = {}
        """Arrivals by model and shape, which share batches and take equally long."""
        self._needs: dict[str, RequiredBatchSize] = {}
        """How large batches the loads need, by model: one for all that share workers."""
        self._promises: dict[ProfileKey, LatencyBounds] = {}
        """Latency bounds of profiles, computed on demand and again after a change."""
        self._applications: dict[str, Applications] = {}
        """The applications that are known, by model."""
        for times in setup.latency_distributions:
            self._applications.setdefault(times.model, Applications()).tell(times)
        self._moved: dict[str, None] = {}
        """Models whose candidates are older than what is known of their applications, in order."""
        self._ends_ns: dict[int, int] = {}
        """When what runs is planned to end, by worker."""
        self._ready = ReadyCandidates()
        self._precedence = Precedence()
        self._autoscaler = Autoscaler(round(options.advice_every_s * 1e9), options.max_miss_rate)

    def migrate(self, setup: Setup) -> Self:
        """Return the next policy, with the learned rates and pending recommendations."""
        follower = super().migrate(setup)
        follower._loads = {
            model_shape: QueueLoad.of(load.rate, needed_rows=load.needed_rows)
            for model_shape, load in self._loads.items()
            if model_shape[0] in follower.models
        }
        follower._autoscaler, follower._precedence = self._autoscaler, self._precedence
        return follower

    def handle(self, event: AnyEvent) -> Commands:
        """Handle an event; changes of applications are processed once for all."""
        if self._moved and type(event) is not LatencyDistributionUpdated:
            self._plan_by_applications()
        return super().handle(event)

    def new_queue(self, key: QueueKey, model: Model) -> ModelThread:
        """Return the model thread of a queue; all queues of a model and shape share a target."""
        load, no_slo_max_deferral_ns = self._loads[key[:2]], self.setup.no_slo_max_deferral_ns
        rate, target = load.rates_of_keys[key[2]], load.target if self._by_window else None
        return ModelThread(
            key,
            model,
            self._gathering,
            rate,
            target,
            no_slo_max_deferral_ns=no_slo_max_deferral_ns,
            slack_ns=self._slack_ns,
        )

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Count the arrival, and add the request to the candidate or form a new one."""
        request, now_ns = event.request, event.now_ns
        load = self._loads.get((request.model, request.shape))
        if load is None:
            load = self._begin_load((request.model, request.shape), now_ns)
        rate_of_key = load.rate_of_key(queue_key(request, self.models[request.model])[2], now_ns)
        if not self.is_readmitted(request):
            if not self.models[request.model].streams:
                self._autoscaler.arrived()
            if load.outlook is None or now_ns + load.outlook.profile.upper_ns(1) <= request.deadline_ns:
                # What is too late as it comes asks for no batch.
                load.rate.observe(now_ns, request.rows)
                rate_of_key.observe(now_ns, request.rows)
            if request.app and (known := self._applications.get(request.model)) and known.count(request.app):
                self._moved[request.model] = None
            if self._adapts and (need := self._needs.get(request.model) or self._share(request.model)):
                need.refresh(now_ns, request.rows)
        thread = self.enqueue(request)
        if not thread.joins(request, now_ns, self._enough_rows(thread)):
            return self.queue_changed(now_ns, thread)
        candidate = thread.candidate
        assert candidate is not None, "a request joined it"
        if candidate.exec_ns > now_ns:
            return (SetTimer(thread.key, candidate.exec_ns),)
        if self._ready.holds(thread.key):  # it waits for a worker, and may have become more urgent
            return self._await_worker(now_ns, thread, candidate)
        return self.queue_changed(now_ns, thread)

    def queue_changed(self, now_ns: int, queue: ModelThread) -> Commands:
        """Form a new candidate; dispatch it or set its timer."""
        commands: list[AnyCommand] = []
        self._update(now_ns, queue, commands)
        return commands

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Dispatch the schedulable candidate of the smallest rank (GPU timer).

        A candidate that should wait for a worker about to be idle keeps the worker from less urgent ones.
        """
        commands: list[AnyCommand] = []
        hosts = self.idle.hosts(worker.id)
        tried: set[QueueKey] = set()
        leave_room: set[ModelShape] = set()
        while self.idle.is_idle(worker.id):
            key = self._ready.most_urgent(hosts, tried)
            if key is None:
                break
            tried.add(key)
            thread = self.queues[key]
            if thread.model_shape in leave_room and thread.leaves_room(now_ns):
                continue  # many queues of a model and shape, by merge keys, are not all looked at for the same answer
            self._update(now_ns, thread, commands)
            if self._ready.holds(key) and thread.leaves_room(now_ns) and self._rooms(thread):
                leave_room.add(thread.model_shape)
            is_about_to_be = self.start_ns(now_ns, worker) > now_ns
            if is_about_to_be and self._ready.holds(key) and self._would_run(now_ns, thread, worker):
                break
        return commands

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Handle a ready worker: dispatch the most urgent candidate."""
        self._ends_ns.pop(event.worker_id, None)
        commands = super().on_worker_ready(event)
        if event.free_ns > event.now_ns:  # unless it was given something, it is not idle before that
            self._ends_ns.setdefault(event.worker_id, event.free_ns)
        return commands

    def on_stage_finished(self, event: StageFinished) -> Commands:
        """Update the load; return a worker recommendation if one is due. Slots of streams do not count."""
        worker = self.idle.get(event.worker_id)
        if worker and not worker.server:
            self._autoscaler.ran(event.ended_ns - event.started_ns)
        return self._autoscaler.advice(event.now_ns, self.idle.count_batching())

    def on_timer_latency_updated(self, event: TimerLatencyUpdated) -> Commands:
        """Move the timers of all candidates."""
        self._slack_ns = event.timer_latency_ns
        for thread in self.queues.values():
            thread.slack_ns = event.timer_latency_ns
        return [
            command for thread in list(self.queues.values()) for command in self.queue_changed(event.now_ns, thread)
        ]

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Handle a new worker: recompute the models that share it."""
        self._needs.clear()
        return super().on_worker_joined(event)

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Handle a lost worker: recompute the models that shared it."""
        self._needs.clear()
        self._ends_ns.pop(event.worker_id, None)
        return super().on_worker_lost(event)

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Handle a changed profile: models that share workers with it need its cost."""
        commands = super().on_profile_updated(event)
        self._outlook((event.profile.partition, event.profile.shape))
        return commands

    def on_latency_distribution_updated(self, event: LatencyDistributionUpdated) -> Commands:
        """Store the new distribution; several are processed together."""
        self._applications.setdefault(event.times.model, Applications()).tell(event.times)
        self._moved[event.times.model] = None
        return ()

    def forget_plans(self, partitions: Collection[str], shape: str | None = None) -> None:
        """Discard candidates and targets that depend on these workers or profiles."""
        super().forget_plans(partitions, shape)
        for model_shape, load in self._loads.items():
            if model_shape[0] in partitions and shape in (None, model_shape[1]):
                load.forget_plans()
        for thread in self.queues.values():
            if thread.model_shape[0] in partitions and shape in (None, thread.shape):
                thread.candidate = None

    def _update(self, now_ns: int, thread: ModelThread, commands: list[AnyCommand]) -> None:
        """Dispatch what is schedulable now; leave a candidate that waits for its moment, or for a worker."""
        while thread and (outlook := self._outlook(thread.model_shape)):
            if hopeless := thread.count_hopeless(outlook, now_ns):
                if not thread.model.streams:
                    self._autoscaler.dropped(hopeless)
                self._precedence.dropped(hopeless)
                commands.extend(Drop(request.id, "deadline_unreachable") for request in self.take(thread, hopeless))
                continue
            candidate = thread.update(outlook, now_ns, self._enough_rows(thread), self._alike(thread.model_shape))
            if candidate.exec_ns > now_ns:  # not schedulable before its moment
                self._ready.discard(thread.key)
                commands.append(SetTimer(thread.key, candidate.exec_ns))
                return
            if not self._grant(now_ns, thread, candidate, commands):
                commands.extend(self._await_worker(now_ns, thread, candidate))
                return
        self._ready.discard(thread.key)
        commands.append(CancelTimer(thread.key))

    def _await_worker(self, now_ns: int, thread: ModelThread, candidate: Candidate) -> Commands:
        """Let a candidate be schedulable until it ceases to be valid; look again when it need not leave room."""
        rank_ns = candidate.latest_ns
        if self._by_density and not thread.head.app:
            # Slow applications must run before they are known, however little they add to requests on time.
            duration_ns = thread.outlook.profile.expected_ns(candidate.rows)
            requests: float = candidate.requests
            if candidate.on_time and self._precedence.drops and len(self._loads[thread.model_shape].rates_of_keys) > 1:
                requests = thread.expected_on_time(candidate)  # as within a queue, which skips what may be late
            worth = requests * self._weights.get(thread.model.name, 1.0)
            rank_ns = self._precedence.rank_ns(rank_ns, worth, duration_ns)
        is_new = self._ready.put(thread.key, rank_ns + (0 if candidate.on_time else TRIED_NS))
        if thread.leaves_room(now_ns) and self._rooms(thread):
            return (SetTimer(thread.key, min(candidate.frontrun_ns, candidate.latest_ns + 1)),)
        if not is_new and rank_ns == candidate.latest_ns:
            return ()
        expires = candidate.latest_ns < NEVER_NS
        return (SetTimer(thread.key, candidate.latest_ns + 1) if expires else CancelTimer(thread.key),)

    def _rooms(self, thread: ModelThread) -> Sequence[WorkerHeadroom]:
        """The room to leave to those that share workers with a queue, the least wait first."""
        need = self._needs.get(thread.model.name)
        return need.rooms if need else ()

    def _is_room_left(self, now_ns: int, thread: ModelThread, worker: Worker, rows: int) -> bool:
        """Whether enough workers are left for requests that cannot wait as long as a batch of this many rows runs."""
        rooms = self._rooms(thread)
        if not rooms:
            return True
        lasts_ns = self.profile(thread.model.name, worker, thread.shape).expected_ns(rows)
        idle = self.idle.count_idle(thread.model.name)
        for room in rooms:
            if lasts_ns <= room.wait_ns:
                break
            if idle <= room.workers:
                soon_ns = now_ns + room.wait_ns
                if idle + sum(ends_ns <= soon_ns for ends_ns in self._ends_ns.values()) <= room.workers:
                    return False
        return True

    def _grant(self, now_ns: int, thread: ModelThread, candidate: Candidate, commands: list[AnyCommand]) -> bool:
        """Give the queue's batch to the idle worker of the smallest id on which it is on time; False if none is."""
        model = thread.model.name
        for worker in self.idle.peek_each_kind(model):
            profile = self.profile(model, worker, thread.shape)
            start_ns = self.start_ns(now_ns, worker)
            # Where all workers have one device class, the candidate is what would be gathered again.
            foreseen, tries = profile is thread.outlook.profile, not candidate.on_time
            promises = thread.outlook.promises if foreseen else self._promises_of(profile)
            batch: FormedBatch | Candidate | None = candidate
            if not foreseen or start_ns > now_ns:
                batch = thread.gather(promises, start_ns, tries=tries)
            if batch is not None and start_ns > now_ns and batch != thread.gather(promises, now_ns, tries=tries):
                continue  # once the worker is idle, which may be sooner than planned, more may be on time
            if batch is None or (
                thread.leaves_room(now_ns) and not self._is_room_left(now_ns, thread, worker, batch.rows)
            ):
                continue
            chosen = batch.chosen if isinstance(batch, Candidate) else batch
            count, start = batch.count, batch.start
            if isinstance(chosen, SelectedBatch):
                thread.bring_forward(chosen.ids)
                count, start = len(chosen.ids), 0
            elif batch.fillers:
                count, start = thread.bring_batch_forward(batch), 0
            command = self.dispatch(now_ns, thread, count, worker, start=start)
            self._ends_ns[worker.id] = command.batch.stages[0].end_ns
            self._precedence.dispatched(len(command.batch.request_ids), profile.expected_ns(batch.rows))
            commands.append(command)
            return True
        return False

    def _would_run(self, now_ns: int, thread: ModelThread, worker: Worker) -> bool:
        """Whether a candidate that waits for a worker would run on this one if that were idle now."""
        candidate, profile = thread.candidate, self.profile(thread.model.name, worker, thread.shape)
        if candidate is None or profile is thread.outlook.profile:
            return True
        return thread.gather(self._promises_of(profile), now_ns, tries=not candidate.on_time) is not None

    def _enough_rows(self, thread: ModelThread) -> float:
        """The size from which on a batch does not wait for more.

        It is what the load needs (`RequiredBatchSize`), and no more than pays: one more request in a batch of b spares
        beta/b of worker time; waiting for it, 1/lambda on average, keeps a worker idle that others may want: the more
        of them there are, and the fewer workers are idle, the surer. Both are equal at `b* = lambda*beta / kappa` with
        `kappa = contention_weight * others / idle`, at least 1. Lambda is the rate of what can join: of this merge key,
        and small enough.
        """
        load = self._loads[thread.model_shape]
        if not self._adapts or load.outlook is None or (load.needed_rows < inf and self._consolidates):
            return inf
        if load.needed_rows <= 1:
            return 1
        free_rows = max(1, load.outlook.most_rows - thread.rows)
        pays_rows = thread.rate.rows_per_ns_joining(free_rows) * load.outlook.fixed_cost_ns
        need = self._needs.get(thread.model.name)
        others = len(need.loads) - 1 if need else 0
        if others and pays_rows > 1:
            kappa = self._contention * others / max(1, self.idle.count_idle(thread.model.name))
            pays_rows /= max(1.0, kappa)
        return min(load.needed_rows, max(1.0, pays_rows))

    def _alike(self, model_shape: ModelShape) -> Sequence[SimilarRequests]:
        """The groups from which batches of a model and shape are chosen; none where they are formed from the head on.

        A batch that is chosen may leave the head behind. Who is left behind has too little chance where other models
        share the workers, or if it is unknown which will be on time: so batches are chosen only where requests are of
        several applications, or where all belong to one whose times hardly vary.
        """
        load, need = self._loads[model_shape], self._needs.get(model_shape[0])
        if self.models[model_shape[0]].slo_ns is None or not load.alike:
            return ()
        alone = need is not None and len(need.loads) == 1
        return load.alike if len(load.alike) > 1 or (alone and not load.alike[0].promises.scatters) else ()

    def _alike_by_applications(self, model_shape: ModelShape, profile: Profile) -> tuple[SimilarRequests, ...]:
        known, model = self._applications.get(model_shape[0]), self.models[model_shape[0]]
        if known is None or any(other[0] == model_shape[0] for other in self._loads if other != model_shape):
            return ()  # of several shapes their profiles tell: what is known of applications is of all shapes together
        return known.alike(profile, model.merged_rows, self.quantile)

    def _plan_by_applications(self) -> None:
        """Plan with what is known of applications now, once all groups of a model's are made again."""
        points = POINTS_PER_EVENT
        for model in list(self._moved):
            points, are_made = self._applications[model].refresh(points)
            if are_made:
                del self._moved[model]
                self._tell_apart(model)
                if self._applications[model].is_stale:  # others wait for their turn before it
                    self._moved[model] = None
            if points <= 0:
                break

    def _tell_apart(self, model: str) -> None:
        """Handle changed data on a model's applications: its candidates are formed again when needed."""
        self.forget_plans((model,))
        for model_shape in [model_shape for model_shape in self._loads if model_shape[0] == model]:
            self._outlook(model_shape)

    def _begin_load(self, model_shape: ModelShape, now_ns: int) -> QueueLoad:
        """Begin to count a model and shape whose first request arrives."""
        load = self._loads[model_shape] = QueueLoad.of(ArrivalRate(now_ns))
        if model_shape[0] in self._applications:
            self._tell_apart(model_shape[0])
        self._outlook(model_shape)
        if need := self._needs.get(model_shape[0]):
            need.loads.append(load)
        return load

    def _share(self, model: str) -> RequiredBatchSize | None:
        """Return the shared state of all models that share workers with a model; None if no worker hosts it."""
        models, workers = self.idle.sharing(model)
        if not workers:
            return None
        of_them = (
            load for model_shape, load in self._loads.items() if model_shape[0] in models and self._outlook(model_shape)
        )
        need = RequiredBatchSize(workers, of_them)
        self._needs.update(dict.fromkeys(models, need))
        return need

    def _outlook(self, model_shape: ModelShape) -> QueueOutlook | None:
        """Return the outlook of a queue; None if no worker hosts its model or nothing has arrived."""
        load, (model, shape) = self._loads.get(model_shape), model_shape
        if load is None:
            return None
        if load.outlook is None and (fastest := self.fastest_profile(model, shape)):
            most_rows = min(self.models[model].merged_rows, fastest.efficient_batch_rows)
            promises, workers = self._promises_of(fastest), self.idle.count_hosting(model)
            load.outlook = QueueOutlook(promises, workers, fastest.fixed_cost_ns, most_rows, self.models[model].slo_ns)
            if self._chooses and len(self.idle.kinds_hosting(model)) == 1:
                load.alike = self._alike_by_applications(model_shape, fastest) or (SimilarRequests(promises),)
        return load.outlook

    def _promises_of(self, profile: Profile) -> LatencyBounds:
        """Return the latency bounds of a profile, computed once, since batch formation needs them often."""
        promises = self._promises.get(profile.key)
        if promises is None or promises.profile is not profile:
            promises = self._promises[profile.key] = LatencyBounds.of(profile, self.quantile)
        return promises


class AutoOptions(TuningOptions, SymphonyOptions):
    """Options of the policy `auto`: those of the tuner, and those of Symphony, which decides first."""


class Auto(Symphony):
    """Symphony, which a driver replaces while it serves (`tidegate.control.settings`)."""

    Options = AutoOptions
