"""Nexus: a static plan of who serves what, frontends that route by it, workers that know only their own queues.

Shen et al., *Nexus*, sections 5 and 6; as the baseline of Symphony, sections 2.2 and 5.3.
"""

from typing import Literal

from pydantic import Field

from tidegate.api import (
    AnyCommand,
    Batch,
    BatchFailed,
    Commands,
    Dispatch,
    Drop,
    Gathering,
    Leg,
    LegFinished,
    Policy,
    PolicyOptions,
    ProfileUpdated,
    QueueKey,
    Request,
    RequestArrived,
    RequestCancelled,
    RequestQueue,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
    ms_to_ns,
)
from tidegate_baselines.squishy import Plan, largest_batch, static_plan

GATHERING = Gathering(reserve_ns=0)
ROWS_PER_S = 1e-9
"""In rows per ns."""


class NexusOptions(PolicyOptions):
    """Options of `nexus`."""

    rates: dict[str, float] = Field(
        default={}, description="Expected rows per second by model; without any they are observed first"
    )
    observe_ms: float = Field(default=1000.0, gt=0, description="How long arrivals are counted before the plan is made")
    frontends: int = Field(default=1, ge=1, description="How many frontends route, none knowing what the others do")
    drop: Literal["window", "hopeless"] = Field(
        default="window",
        description="window: drop heads that leave no time for a batch of the planned size; hopeless: for themselves",
    )


class _Backend:
    """A worker with queues of its own, served in turn."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.idle = True
        self.queues: dict[QueueKey, RequestQueue] = {}
        """In the order in which they are served."""


class _Frontend:
    """Routes each model's requests over its workers by weighted round robin: the one that is furthest behind its share.

    It begins anywhere: frontends that all begin with the same worker would be coordinated, to the worst.
    """

    def __init__(self, plan: Plan, phase: float) -> None:
        self._routes: dict[str, dict[int, float]] = {}
        """By model, by worker: how often it would have been its turn; the lowest is next."""
        self._steps: dict[tuple[str, int], float] = {}
        for worker_id, shares in sorted(plan.items()):
            for model, share in shares.items():
                step = 1 / share.rows_per_ns
                self._routes.setdefault(model, {})[worker_id] = 0.0
                self._steps[model, worker_id] = step
        for model, route in self._routes.items():
            # As if a part of a round had been routed already.
            ids = list(route)
            for worker_id in ids[: int(phase * len(ids))]:
                route[worker_id] += self._steps[model, worker_id]

    def route(self, model: str, rows: int) -> int | None:
        """The worker whose turn it is; None where nobody serves the model."""
        route = self._routes.get(model)
        if not route:
            return None
        worker_id = min(route, key=route.__getitem__)
        route[worker_id] += rows * self._steps[model, worker_id]
        return worker_id


class Nexus(Policy):
    """Every request goes to a worker when it arrives, by the plan and in turn, and waits there whatever the others do.

    A worker that is idle serves its queues in turn, each with at most the planned batch. The plan is made from the
    expected rates, and again only when workers come or go.
    """

    Options = NexusOptions
    options: NexusOptions

    def __init__(self, setup: Setup, options: NexusOptions) -> None:
        super().__init__(setup, options)
        self._models = {model.name: model for model in setup.models}
        self._profiles = {(profile.partition, profile.kind): profile for profile in setup.profiles}
        self._backends = {worker.id: _Backend(worker) for worker in setup.workers}
        self._where: dict[int, tuple[int, QueueKey] | None] = {}
        """Of every queued request; None where no worker is left that could take it."""
        self._rates = {model: rate * ROWS_PER_S for model, rate in options.rates.items()}
        self._observed: dict[str, int] = {}
        self._observing_since_ns: int | None = None
        self._make_plan()

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Route it, and let its worker begin if it is idle."""
        request = event.request
        if not self._rates:
            self._observe(event.now_ns, request)
        backend = self._route(request)
        return self._serve(event.now_ns, backend) if backend else ()

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Take it out of its queue."""
        where = self._where.pop(event.request_id)
        if where:
            worker_id, key = where
            self._backends[worker_id].queues[key].remove(event.request_id)
        return ()

    def on_leg_finished(self, event: LegFinished) -> Commands:
        """The worker goes on with its next queue."""
        return self._freed(event.now_ns, event.worker_id)

    def on_batch_failed(self, event: BatchFailed) -> Commands:
        """The worker goes on, unless it was lost."""
        return self._freed(event.now_ns, event.worker_id)

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Plan anew; what is queued stays where it is."""
        self._backends[event.worker.id] = _Backend(event.worker)
        self._make_plan()
        commands: list[AnyCommand] = []
        for request in [request for request, where in self._stranded()]:
            if backend := self._route(request):
                commands.extend(self._serve(event.now_ns, backend))
        return commands

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Plan anew, and route again what waited there."""
        lost = self._backends.pop(event.worker_id)
        self._make_plan()
        commands: list[AnyCommand] = []
        for queue in lost.queues.values():
            for request in queue:
                if backend := self._route(request):
                    commands.extend(self._serve(event.now_ns, backend))
        return commands

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Batches are timed by it; the plan stays."""
        self._profiles[event.profile.partition, event.profile.kind] = event.profile
        return ()
