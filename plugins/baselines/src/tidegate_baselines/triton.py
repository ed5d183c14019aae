"""Triton's own dynamic batcher as a policy, to validate the simulator against tritonserver.

Sources: Triton's user guide (Batchers; ModelDynamicBatching and ModelQueuePolicy of model_config.proto).
"""

from collections import Counter
from typing import Literal

from pydantic import Field

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    Batch,
    CancelTimer,
    Commands,
    Dispatch,
    Drop,
    Model,
    Policy,
    PolicyOptions,
    ProfileUpdated,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    Setup,
    Stage,
    TimerFired,
    Worker,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    ms_to_ns,
)
from tidegate.toolkit import IdleWorkers
from tidegate_baselines.dynamic_batcher import BatcherConfig, DynamicBatcher


class BatchingOptions(PolicyOptions):
    """Batching options of a model: `dynamic_batching` of its config.pbtxt."""

    preferred_batch_size: tuple[int, ...] = Field(
        default=(), description="Batch sizes in rows that start at once; empty: the largest one"
    )
    max_queue_delay_ms: float = Field(
        default=0.0, ge=0, description="Time in ms for which a batch of another size waits for more requests"
    )
    max_queue_size: int = Field(
        default=0, ge=0, description="Number of waiting requests from which further ones are rejected; 0: unlimited"
    )
    default_timeout_ms: float = Field(
        default=0.0, ge=0, description="Time in ms for which a request may wait; 0: unlimited"
    )
    timeout_action: Literal["reject", "delay"] = Field(
        default="reject",
        description="Action on a request that timed out: reject it, or serve it after all others (delay)",
    )
    allow_timeout_override: bool = Field(
        default=False, description="Whether a shorter timeout of the request itself applies"
    )
    begin_ms: float = Field(
        default=0.0,
        ge=0,
        description="Wake-up time of an idle instance in ms; requests that arrive meanwhile join its batch",
    )
    executed: int = Field(
        default=0, ge=0, description="Number of batches that the instances executed before, all together"
    )


class TritonOptions(BatchingOptions):
    """Options of the policy `triton`: batching of all models, exceptions by model, and the order of models that share
    workers.
    """

    queue_order: Literal["oldest", "fewest"] = Field(
        default="oldest",
        description="Next model of a worker that hosts several: the one that waited longest (oldest), or the one with "
        "the fewest executions (fewest), as in Triton's rate limiter with equal priorities",
    )
    models: dict[str, BatchingOptions] = Field(
        default={}, description="Options of single models, by name; others apply as well"
    )

    def of(self, model: str) -> BatchingOptions:
        """Return the batching options of one model."""
        own = self.models.get(model)
        return self if own is None else self.model_copy(update=own.model_dump(exclude_unset=True))


class Triton(Policy):
    """Triton's scheduler: a queue and a dynamic batcher for each model; a free instance takes the next batch.

    It uses neither deadlines nor latencies. A worker that hosts several models runs one batch at a time, as Triton does
    under a rate limiter with one resource; `queue_order` selects the next model.
    """

    Options = TritonOptions
    options: TritonOptions
    best_effort = True
    supports_pipelined_dispatch = True
    early_drop_reason = "a full queue rejects and a queue timeout drops requests even if workers are idle, as in Triton"

    def __init__(self, setup: Setup, options: TritonOptions) -> None:
        super().__init__(setup, options)
        self._idle = IdleWorkers(setup.workers)
        self._profiles = {profile.key: profile for profile in setup.profiles}
        self._batchers = {model.name: DynamicBatcher(model, self._config(model)) for model in setup.models}
        self._model_of: dict[int, str] = {}
        self._executed = Counter[tuple[int, str]]()
        """How many batches each worker has run of each model."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Add the request to the queue, or drop it if the queue is full."""
        request = event.request
        if not self._batchers[request.model].push(request):
            return [Drop(request.id, "queue full")]
        self._model_of[request.id] = request.model
        return self._advance(event.now_ns, request.model)

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Remove the request from its queue."""
        model = self._model_of.pop(event.request_id)
        self._batchers[model].remove(event.request_id)
        return self._advance(event.now_ns, model)

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """Dispatch a batch that has waited long enough, or drop requests that timed out."""
        return self._advance(event.now_ns, str(event.key))

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Dispatch the next batch to the instance."""
        worker = self._idle.note(event)
        return self._freed(event.now_ns, worker) if worker else ()

    def on_worker_delayed(self, event: WorkerDelayed) -> Commands:
        """Mark the instance as busy."""
        self._idle.occupy(event.worker_id)
        return ()

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Add an idle instance."""
        self._idle.join(event.worker)
        return self._freed(event.now_ns, event.worker)

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Remove the instance."""
        self._idle.leave(event.worker_id)
        return ()

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Use the profile for the planned duration of batches."""
        self._profiles[event.profile.key] = event.profile
        return ()

    def _config(self, model: Model) -> BatcherConfig:
        if not model.merges:  # Triton has no batcher for it, and so no queue policy
            return BatcherConfig(preferred=frozenset({model.merged_rows}))
        options = self.options.of(model.name)
        sizes = {size for size in options.preferred_batch_size if size <= model.merged_rows}
        return BatcherConfig(
            preferred=frozenset(sizes or {model.merged_rows}),
            delay_ns=ms_to_ns(options.max_queue_delay_ms),
            timeout_ns=ms_to_ns(options.default_timeout_ms),
            allow_timeout_override=options.allow_timeout_override,
            reject=options.timeout_action == "reject",
            max_queue_size=options.max_queue_size,
            begin_ns=ms_to_ns(options.begin_ms),
        )

    def _freed(self, now_ns: int, worker: Worker) -> Commands:
        """The payload runs whose turn it is; then every model of that worker may make another."""
        waiting = [self._batchers[name] for name in worker.hosts if name in self._batchers]
        commands: list[AnyCommand] = []
        if ready := [batcher for batcher in waiting if batcher.payloads]:
            commands.append(self._run(now_ns, min(ready, key=lambda batcher: self._turn(batcher, worker)), worker))
        for batcher in waiting:
            commands.extend(self._advance(now_ns, batcher.model.name))
        return commands

    def _turn(self, batcher: DynamicBatcher, worker: Worker) -> tuple[int, int, str]:
        """Whose is the least runs next."""
        name = batcher.model.name
        since_ns = batcher.payloads[0].since_ns
        if self.options.queue_order == "oldest":
            return 0, since_ns, name
        before = self.options.of(name).executed // self._idle.count_hosting(name)
        return before + self._executed[worker.id, name], since_ns, name

    def _advance(self, now_ns: int, model: str) -> Commands:
        """Let a model's batcher work until nothing more can be moved, and ask to be woken when that changes."""
        batcher = self._batchers[model]
        commands: list[AnyCommand] = []
        for request in batcher.expire(now_ns):
            del self._model_of[request.id]
            commands.append(Drop(request.id, "timeout"))
        while True:
            worker = self._idle.peek(model)
            wake_ns = batcher.form(now_ns, self._idle.count_hosting(model), 1 if worker else 0)
            if worker is None or not batcher.payloads:
                break
            if (begins_ns := batcher.payloads[0].begins_ns) > now_ns:
                wake_ns = min(wake_ns, begins_ns)
                break
            commands.append(self._run(now_ns, batcher, worker))
        commands.append(SetTimer(model, wake_ns) if wake_ns < NEVER_NS else CancelTimer(model))
        return commands

    def _run(self, now_ns: int, batcher: DynamicBatcher, worker: Worker) -> Dispatch:
        requests = batcher.take(now_ns)
        for request in requests:
            del self._model_of[request.id]
        model = batcher.model.name
        rows = sum(request.rows for request in requests)
        start_ns = self._idle.start_ns(now_ns, worker.id)
        stage = Stage(
            worker.id, model, start_ns, self._profiles[model, worker.device_class, requests[0].shape].upper_ns(rows)
        )
        self._idle.occupy(worker.id)
        self._executed[worker.id, model] += 1
        return Dispatch(Batch(self.new_batch_id(), model, tuple(request.id for request in requests), (stage,)))
