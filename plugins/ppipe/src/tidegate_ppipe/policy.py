"""PPipe's data plane: batches through pooled pipelines, with all resources reserved (section 5.4, Algorithms 1
and 2).
"""

from typing import ClassVar, Literal, Self, cast

from pydantic import Field

from tidegate.api import (
    AnyCommand,
    Batch,
    BatchFailed,
    Commands,
    Dispatch,
    Pipeline,
    Policy,
    PolicyOptions,
    ProfileUpdated,
    QueueKey,
    Request,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    Setup,
    StageFinished,
    TimerFired,
    TimerLatencyUpdated,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    ms_to_ns,
)
from tidegate_ppipe.corrections import Corrections
from tidegate_ppipe.queues import PoolQueue, PoolQueues
from tidegate_ppipe.resources import Resources
from tidegate_ppipe.routes import InFlightBatch, RouteStop, stages_of
from tidegate_ppipe.sizing import ModelPipelines, SizedBatch, SizedPipeline, Sizing


class PpipeOptions(PolicyOptions):
    """Options of the policy `ppipe`."""

    deadline_margin_ms: float = Field(
        default=0.0, ge=0, lt=1e6, description="Time in ms reserved before every deadline for unplanned delays"
    )
    batch_formation: Literal["when_needed", "full_size"] = Field(
        default="when_needed",
        description="Waiting of a batch: until it has the planned size or must start (full_size, the paper's); under "
        "light load only until workers sustain the load with its size, and at most until no further "
        "request could join in time (when_needed)",
    )
    fill_gaps: bool = Field(
        default=False,
        description="Whether work may be placed between two reservations of a worker, not only behind all of them",
    )
    least_part: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Fraction of the planned batch for which a request must leave time while others wait, or it is "
        "dropped; default: the batch size that the load needs",
    )


class Ppipe(Policy):
    """PPipe: a batch starts when a route is free for it: its first stage at once, the later ones as reserved.

    The pipeline is the one whose resources are free first at its planned batch size. The batch has the most rows that
    meet the deadline of the oldest request; with fewer waiting requests it waits for more, until the last moment at
    which those are on time. Departures from the paper: a batch gets its route when its first worker is free, not
    before; if the chosen pipeline cannot meet a deadline, the others are tried before the request is dropped; after an
    early or late stage the rest of the route is chosen again.
    """

    Options = PpipeOptions
    runs_pipelines = True
    awaits_ready = False
    quantile = 0.84
    """Quantile of a normal distribution one standard deviation above the mean of each stage."""
    early_drop_reason = (
        "a head that leaves time for fewer rows than the load needs goes, where others wait (Algorithm 1)"
    )
    knows_network: ClassVar[bool] = True
    """Whether transfers between stages are planned; False: they are assumed to take no time."""

    def __init__(self, setup: Setup, options: PpipeOptions) -> None:
        super().__init__(setup, options)
        network = setup.network if self.knows_network else None
        self.resources = Resources(setup.workers, setup.profiles, network, fill_gaps=options.fill_gaps)
        self._routes = {model.name: ModelPipelines(model, self.route) for model in setup.models}
        sizing = Sizing(self.resources, reserve_ns=ms_to_ns(options.deadline_margin_ms), least_part=options.least_part)
        as_needed = options.batch_formation == "when_needed"
        self._waiting = PoolQueues(
            self._routes, sizing, self._dispatch, as_needed=as_needed, slack_ns=setup.timer_latency_ns
        )
        self._corrections = Corrections(self.resources, self._serve)
        self._models_of: dict[str, list[str]] = {}
        """The models whose pipelines a partition begins, by its name."""
        for model in setup.models:
            for partition in {path.partitions[0] for path in model.paths}:
                self._models_of.setdefault(partition, []).append(model.name)
        self._measure()

    def migrate(self, setup: Setup) -> Self:
        """Return the next policy, with the learned rates."""
        follower = super().migrate(setup)
        follower._waiting.follow(self._waiting)
        follower.readmitted_ids = self.readmitted_ids | self._waiting.request_ids
        return follower

    def route(self, pipeline: Pipeline) -> SizedPipeline:
        """Return the pipeline with the data for sizing its batches."""
        return SizedPipeline(pipeline)

    def stops_of(self, now_ns: int, found: SizedBatch) -> list[RouteStop]:
        """Return the stops of a batch that is dispatched at `now_ns`."""
        return found.path.stops

    # Events ------------------------------------------------------------------------------------------------------

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Queue the request and look for a route, unless its batch waits for more requests."""
        return self._waiting.push(event.now_ns, event.request, readmitted=self.is_readmitted(event.request))

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Remove the request; its batch may have time to wait for more."""
        return self._waiting.remove(event.now_ns, event.request_id)

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """Decide about the queue whose last start is due."""
        return self._waiting.wake(event.now_ns, cast("QueueKey", event.key))  # timers are all named after queues

    def on_stage_finished(self, event: StageFinished) -> Commands:
        """Correct the reservations, and dispatch requests that wait for the worker."""
        return [*self._corrections.stage_finished(event), *self._serve(event.now_ns, event.worker_id)]

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Do nothing: reservations determine when a worker is free."""
        return ()

    def on_batch_failed(self, event: BatchFailed) -> Commands:
        """Free the reservations of the batch."""
        return self._corrections.failed(event)

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Add the worker, and look for new routes."""
        before = {model: len(routes.usable) for model, routes in self._routes.items()}
        self.resources.join(event.worker)
        self._measure()
        opened = [model for model, routes in self._routes.items() if len(routes.usable) > before[model]]
        waiting = [queue for queue in self._waiting.of(opened) if not queue.waits_for_rows]
        return self._serve(event.now_ns, event.worker.id) + self._waiting.decide(event.now_ns, waiting)

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Reroute batches to the lost worker, or let them fail; then decide about the queues."""
        place = self.resources.leave(event.worker_id)
        if place is None:
            return ()
        self._measure()
        commands = self._corrections.lost(event.now_ns, place)
        affected = [model for model, routes in self._routes.items() if any(map(routes.use, place.hosts))]
        return commands + [SetTimer(queue.key, event.now_ns) for queue in self._waiting.of(affected)]

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Plan with the new profile, and decide again about queues whose last start has moved."""
        self.resources.expect(event.profile)
        commands: list[AnyCommand] = []
        for model, routes in self._routes.items():
            if routes.use(event.profile.partition):
                routes.measure(self.resources)
                commands += self._waiting.decide(event.now_ns, self._waiting.of([model]))
        return commands

    def on_timer_latency_updated(self, event: TimerLatencyUpdated) -> Commands:
        """Decide about all waiting queues again, since their last starts have moved."""
        self._waiting.slack_ns = event.timer_latency_ns
        return self._waiting.decide(event.now_ns, self._waiting.gathering)

    # Batches -----------------------------------------------------------------------------------------------------

    def _serve(self, now_ns: int, worker_id: int) -> list[AnyCommand]:
        """Give a worker that is free to the queues that it serves, most urgent first."""
        place = self.resources.place(worker_id)
        if place is None:
            return []
        models = {model: None for partition in place.hosts for model in self._models_of.get(partition, ())}
        queues = [queue for queue in self._waiting.of(models) if not queue.waits_for_rows]
        queues.sort(key=lambda queue: (queue.head.deadline_ns, queue.head.id))
        return self._waiting.decide(now_ns, queues)

    def _dispatch(self, now_ns: int, queue: PoolQueue, found: SizedBatch, requests: list[Request]) -> Dispatch:
        """Requests leave together on the path that was found for them, and reserve all that they need."""
        flight = InFlightBatch(self.new_batch_id(), found.rows, found.shape, self.stops_of(now_ns, found))
        self._corrections.begin(flight)
        request_ids = tuple(request.id for request in requests)
        return Dispatch(Batch(flight.batch_id, queue.model.name, request_ids, stages_of(flight.stops)))

    def _measure(self) -> None:
        for routes in self._routes.values():
            routes.measure(self.resources)
