"""Nexus: a static plan of which worker serves which models, and round-robin routing by it.

Shen et al., *Nexus*, sections 5 and 6; as the baseline of Symphony, sections 2.2 and 5.3.
"""

from statistics import NormalDist
from typing import Literal, Self

from pydantic import Field, PositiveFloat

from tidegate.api import (
    AnyCommand,
    Batch,
    Commands,
    Dispatch,
    Drop,
    Policy,
    PolicyOptions,
    Profile,
    ProfileUpdated,
    QueueKey,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Stage,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    ms_to_ns,
    queue_key,
)
from tidegate.toolkit import FormedBatch, Gathering, RequestQueue
from tidegate_baselines.squishy import Plan, PlanSearch, largest_batch

NEXUS_BATCH_FORMATION = Gathering(reserve_ns=0)
PAIRS_PER_EVENT = 1000
"""Number of pairs (model, worker) that the search for a plan examines for one event."""
ROWS_PER_S = 1e-9
"""One row per second in rows per ns."""


class NexusOptions(PolicyOptions):
    """Options of the policy `nexus`."""

    rates: dict[str, PositiveFloat] = Field(
        default={}, description="Expected rows per second by model; empty: observed first"
    )
    observe_ms: float = Field(
        default=1000.0, gt=0, description="Time in ms for which arrivals are counted before the plan is computed"
    )
    frontends: int = Field(default=1, ge=1, description="Number of frontends that route independently")
    drop: Literal["window", "hopeless"] = Field(
        default="window",
        description="Requests to drop: those without time for a batch of the planned size (window), or without time "
        "to run alone (hopeless)",
    )


class _Backend:
    """Worker with queues of its own, served round robin."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.idle = True
        self.queues: dict[QueueKey, RequestQueue] = {}
        """The queues, in the order in which they are served."""


class _Frontend:
    """Routes each model's requests over its workers by weighted round robin: the one that is furthest behind its share.

    It begins anywhere: frontends that all begin with the same worker would be coordinated, to the worst.
    """

    def __init__(self, plan: Plan, phase: float) -> None:
        self._routes: dict[str, dict[int, float]] = {}
        """How often it would have been a worker's turn, by model and worker id; the lowest is next."""
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
        """Return the worker whose turn it is; None if no worker serves the model."""
        route = self._routes.get(model)
        if not route:
            return None
        worker_id = min(route, key=route.__getitem__)
        route[worker_id] += rows * self._steps[model, worker_id]
        return worker_id


class Nexus(Policy):
    """Nexus: routes every request on arrival to a worker of the plan, round robin; the request waits there.

    An idle worker serves its queues in rotation, each with at most the planned batch. The plan is computed from the
    expected rates, and again only when workers join or leave.
    """

    Options = NexusOptions
    options: NexusOptions
    quantile = NormalDist().cdf(1.0)
    """Quantile of the mean plus one standard deviation, as in the paper's profiles.

    Batches planned for half of an SLO leave no room for more: if durations vary by a tenth, the 99th percentile loses
    5.0 % of the requests, and this quantile 0.3 %.
    """
    early_drop_reason = "a request runs only on the worker that it was routed to, even if others are idle"

    def __init__(self, setup: Setup, options: NexusOptions) -> None:
        super().__init__(setup, options)
        self._models = {model.name: model for model in setup.models}
        self._profiles = {profile.key: profile for profile in setup.profiles}
        self._backends = {worker.id: _Backend(worker) for worker in setup.workers}
        self._where: dict[int, tuple[int, QueueKey]] = {}
        """Worker and queue of every request that was routed and waits."""
        self._unrouted: dict[int, Request] = {}
        """The requests that wait for a worker to join that serves their model."""
        self._rates = {model: rate * ROWS_PER_S for model, rate in options.rates.items()}
        self._observed: dict[str, int] = {}
        self._observing_since_ns: int | None = None
        self._search: PlanSearch | None = None
        """The search for a plan that is not found yet: the one before holds."""
        self._make_plan()

    def migrate(self, setup: Setup) -> Self:
        """Return the next policy, with the observed rates; if there are new models, it first observes again."""
        follower = super().migrate(setup)
        follower.readmitted_ids = self.readmitted_ids | self._where.keys() | self._unrouted.keys()
        if not self.options.rates and all(model in self._models for model in follower._models):
            follower._rates = {model: rate for model, rate in self._rates.items() if model in follower._models}
            follower._observed, follower._observing_since_ns = self._observed, self._observing_since_ns
            follower._make_plan()
        return follower

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Route the request to a worker, and dispatch the worker's next batch if it is idle."""
        request = event.request
        if not self.is_readmitted(request) and not self._rates:
            self._observe(event.now_ns, request)
        if self._search and self._search.run(max(1, PAIRS_PER_EVENT // max(1, self._search.pairs))):
            self._follow(self._search)
        return self._accept(event.now_ns, request)

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Remove the request from its queue, or from those without a worker."""
        self._unrouted.pop(event.request_id, None)
        where = self._where.pop(event.request_id, None)
        if where:
            worker_id, key = where
            backend = self._backends[worker_id]
            backend.queues[key].remove(event.request_id)
            if not backend.queues[key]:
                del backend.queues[key]
        return ()

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Dispatch the batch of the worker's next queue."""
        backend = self._backends.get(event.worker_id)
        if backend is None:
            return ()
        backend.idle = True
        return self._serve(event.now_ns, backend)

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Compute the plan again, and route requests that no worker served; queued ones stay."""
        self._backends[event.worker.id] = _Backend(event.worker)
        self._make_plan()
        waiting, self._unrouted = self._unrouted, {}
        return [command for request in waiting.values() for command in self._accept(event.now_ns, request)]

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Compute the plan again, and route the requests of the lost worker again."""
        lost = self._backends.pop(event.worker_id)
        self._make_plan()
        waiting = [request for queue in lost.queues.values() for request in queue]
        commands: list[AnyCommand] = []
        for request in waiting:
            del self._where[request.id]
            commands.extend(self._accept(event.now_ns, request))
        return commands

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Use the profile for the duration of batches; the plan stays."""
        self._profiles[event.profile.key] = event.profile
        return ()

    # Control plane: who serves what -------------------------------------------------------------------------------

    def _observe(self, now_ns: int, request: Request) -> None:
        """Count arrivals; after the first interval the rates are known and stay."""
        if self._observing_since_ns is None:
            self._observing_since_ns = now_ns
        elapsed_ns = now_ns - self._observing_since_ns
        if elapsed_ns >= ms_to_ns(self.options.observe_ms):
            self._rates = {model: rows / elapsed_ns for model, rows in self._observed.items()}
            self._search = self._begin_search()
        else:
            self._observed[request.model] = self._observed.get(request.model, 0) + request.rows

    def _begin_search(self) -> PlanSearch:
        """Look for a plan; before anything is known every model is expected to be asked equally."""
        workers = [backend.worker for backend in self._backends.values()]
        return PlanSearch(self._models.values(), workers, self._slowest_shapes(), self._rates)

    def _make_plan(self) -> None:
        """Workers or rates are other ones: a plan is needed at once."""
        search = self._begin_search()
        search.run()
        self._follow(search)

    def _follow(self, search: PlanSearch) -> None:
        self._search, self._plan = None, search.plan
        count = self.options.frontends
        self._frontends = [_Frontend(self._plan, self.rng.random() if count > 1 else 0.0) for _ in range(count)]

    def _slowest_shapes(self) -> dict[tuple[str, str], Profile]:
        """Return the profile of the slowest known shape, by (partition, device class): the plan must hold for all
        shapes."""
        of_kind: dict[tuple[str, str], list[Profile]] = {}
        for (partition, device_class, shape), profile in self._profiles.items():
            listed = of_kind.setdefault((partition, device_class), [])
            if shape:
                listed.append(profile)
        return {key: Profile.slowest(listed or [self._profiles[*key, ""]]) for key, listed in of_kind.items()}

    # Frontends ------------------------------------------------------------------------------------------------------

    def _accept(self, now_ns: int, request: Request) -> Commands:
        """A client asks any of the frontends; it routes at once."""
        frontend = self._frontends[self.rng.randrange(len(self._frontends))]
        worker_id = frontend.route(request.model, request.rows)
        if worker_id is None:
            self._unrouted[request.id] = request  # until a worker joins, or the engine says that none is left
            return ()
        backend = self._backends[worker_id]
        model = self._models[request.model]
        key = queue_key(request, model)
        queue = backend.queues.get(key)
        if queue is None:
            queue = backend.queues[key] = RequestQueue(key, model)
        queue.push(request)
        self._where[request.id] = (worker_id, key)
        return self._serve(now_ns, backend)

    # Backends -------------------------------------------------------------------------------------------------------

    def _serve(self, now_ns: int, backend: _Backend) -> Commands:
        """Let an idle worker run the queue whose turn it is; what is too late on the way is dropped."""
        commands: list[AnyCommand] = []
        while backend.idle and backend.queues:
            key, queue = next(iter(backend.queues.items()))
            profile = self._profiles[queue.model.name, backend.worker.device_class, queue.shape]
            batch = self._gather(now_ns, queue, backend, profile)
            if batch is None:
                commands.extend(Drop(request.id, "deadline_unreachable") for request in self._take(queue, 1))
            else:
                commands.extend(Drop(request.id, "early_drop") for request in self._take(queue, batch.start))
                commands.append(self._dispatch(now_ns, self._take(queue, batch.count), backend, profile))
            if batch or not queue:
                del backend.queues[key]
            if batch and queue:
                backend.queues[key] = queue  # the others are first now
        return commands

    def _gather(self, now_ns: int, queue: RequestQueue, backend: _Backend, profile: Profile) -> FormedBatch | None:
        """Return the batch to run, at most as large as planned; None if the oldest request is hopeless."""
        model = queue.model
        share = self._plan.get(backend.worker.id, {}).get(model.name)
        planned = share.rows if share else largest_batch(model, profile)
        if self.options.drop == "window" and (
            batch := NEXUS_BATCH_FORMATION.window(queue, profile, now_ns, planned, most_rows=planned)
        ):
            return batch
        return NEXUS_BATCH_FORMATION.keep_head(queue, profile, now_ns, most_rows=planned)

    def _take(self, queue: RequestQueue, count: int) -> list[Request]:
        taken = queue.pop(count)
        for request in taken:
            del self._where[request.id]
        return taken

    def _dispatch(self, now_ns: int, requests: list[Request], backend: _Backend, profile: Profile) -> Dispatch:
        backend.idle = False
        model = requests[0].model
        duration_ns = profile.upper_ns(sum(request.rows for request in requests))
        stage = Stage(backend.worker.id, model, now_ns, duration_ns)
        return Dispatch(Batch(self.new_batch_id(), model, tuple(request.id for request in requests), (stage,)))
