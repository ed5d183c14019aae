"""Base class of policies, which turn events into commands.

A policy is a plain deterministic object: no clock (every event carries the current time), no threads, no network, and
randomness only from the seed that it is given. The same object runs in the simulator and in the proxy.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Self

import msgspec

from tidegate.api.commands import AnyCommand
from tidegate.api.device import Network
from tidegate.api.events import (
    AnyEvent,
    BatchFailed,
    LatencyDistributionUpdated,
    ProfileUpdated,
    RequestArrived,
    RequestCancelled,
    StageFinished,
    TimerFired,
    TimerLatencyUpdated,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.api.latency_distribution import LatencyDistribution
from tidegate.api.model import Model, Request, Worker
from tidegate.api.planner import DocumentSection
from tidegate.api.profile import Profile

Commands = Sequence[AnyCommand]
"""Commands that a handler returns, in the order in which the engine applies them."""


HANDLER_NAMES: dict[type, str] = {
    RequestArrived: "on_request_arrived",
    RequestCancelled: "on_request_cancelled",
    StageFinished: "on_stage_finished",
    BatchFailed: "on_batch_failed",
    WorkerReady: "on_worker_ready",
    WorkerDelayed: "on_worker_delayed",
    TimerFired: "on_timer_fired",
    WorkerJoined: "on_worker_joined",
    WorkerLost: "on_worker_lost",
    ProfileUpdated: "on_profile_updated",
    LatencyDistributionUpdated: "on_latency_distribution_updated",
    TimerLatencyUpdated: "on_timer_latency_updated",
}
"""Name of the handler for each event."""


PATIENCE_NS = 1_000_000_000


class Setup(msgspec.Struct, frozen=True):
    """The state that a policy is created with. It never contains true execution times."""

    models: tuple[Model, ...]
    workers: tuple[Worker, ...]
    """The workers at the start, all idle."""
    profiles: tuple[Profile, ...]
    """One profile for every (partition, device class) that a worker hosts, for the empty shape, and those of known
    shapes. For a shape that appears later, ProfileUpdated comes before its first request."""
    seed: int = 0
    first_batch_id: int = 0
    timer_latency_ns: int = 0
    """How late a timer may fire, in ns: 0 in simulation, otherwise as observed.

    Later changes come as TimerLatencyUpdated.
    """
    network: Network | None = None
    """The network between the nodes of the workers; None: transfers take no time."""
    no_slo_max_deferral_ns: int = PATIENCE_NS
    """How long, in ns, requests without a deadline yield to requests with one; after that they share the workers."""
    latency_distributions: tuple[LatencyDistribution, ...] = ()
    """Known latency distributions of applications."""


class PolicyOptions(DocumentSection):
    """Base class of a policy's options, validated: unknown names and infinite numbers are errors."""


class BatchIds:
    """Source of batch ids, in the order of dispatch."""

    __slots__ = ("_next",)

    def __init__(self, first: int) -> None:
        self._next = first

    def draw(self) -> int:
        """Return an id that was never returned before."""
        self._next += 1
        return self._next - 1


class Policy(ABC):
    """Base class of scheduling policies: one method for each event, each returning commands.

    The engine calls the methods one at a time, in order of time. A request that arrived stays queued until the policy
    dispatches or drops it or RequestCancelled comes. A worker runs its reservations in the order of planned starts.
    WorkerReady comes whenever a worker can be given a batch.
    """

    Options: ClassVar[type[PolicyOptions]] = PolicyOptions
    best_effort: bool = False
    """True: the policy may dispatch requests that are predicted to miss their deadline (invariant 8 is not checked)."""
    early_drop_reason: str = ""
    """Why this policy may drop a request that an idle worker could answer on time; empty: it does not.

    If given, invariant 10 is not checked.
    """
    quantile: float = 0.99
    """Fraction of stages that end within `Profile.upper_ns`: the quantile to learn."""
    runs_pipelines: ClassVar[bool] = False
    """True: the policy schedules models that are split into partitions (`Model.pipelines`), too."""
    awaits_ready: bool = True
    """Whether the policy dispatches only to workers announced by WorkerReady. False: it reserves workers ahead."""
    supports_pipelined_dispatch: bool = False
    """True: WorkerReady comes before the running stage has ended, so that the worker is never idle between batches.

    The policy then plans the start of its stage for the event's `free_ns`.
    """

    def __init__(self, setup: Setup, options: PolicyOptions) -> None:
        self.setup = setup
        self.options = options
        self.rng = random.Random(setup.seed)
        self.readmitted_ids: set[int] = set()
        """Requests that this policy, or one before, has counted, by id: they arrive, but for the second time.

        A policy that counts arrivals hands them over in `migrate`, and asks `is_readmitted`.
        """
        self.batch_ids = BatchIds(setup.first_batch_id)
        """Where its batches have their ids from."""

    @classmethod
    def check_models(cls, models: Iterable[Model]) -> None:
        """Raise ValueError if there is a model that this policy cannot schedule."""
        split = next((model.name for model in models if model.pipelines), None)
        if split is not None and not cls.runs_pipelines:
            raise ValueError(
                f"it schedules whole models only, and {split!r} is split into partitions: "
                "choose a policy that runs pipelines, such as ppipe, or serve the model unsplit"
            )

    def check_plan(self, models: Iterable[Model], workers: Iterable[Worker]) -> None:
        """Raise ValueError if this policy cannot continue with these models or workers (`migrate`)."""
        self.check_models(models)

    def check_worker(self, worker: Worker) -> None:  # noqa: B027 - most can use any
        """Raise ValueError if this policy cannot use a worker that is about to join."""

    def is_best_effort(self, model: str) -> bool:
        """Whether the policy may dispatch requests of a model that are predicted to miss their deadline."""
        return self.best_effort

    def is_awaiting(self, worker_id: int) -> bool:
        """Whether the policy dispatches to this worker only after WorkerReady (`awaits_ready`)."""
        return self.awaits_ready

    def separate_applications(self, model: str) -> bool:
        """Whether the engine gives requests of slower applications a shape of their own for this policy.

        The engine then derives a profile for each class from the learned distributions; the policy need not know them.
        """
        return False

    def migrate(self, setup: Setup) -> Self:
        """Return the policy that continues with changed models, workers or network: same class, same options.

        A policy that learns passes on what is still valid and derives the rest from `setup`. Waiting requests arrive
        again at the new policy.
        """
        return type(self)(setup, self.options)

    def repaired(self, setup: Setup) -> Self:
        """Return the policy that continues when failed parts of this one are retried (see `fallback`)."""
        return self.migrate(setup)

    def fallback(self, applied: int) -> tuple[str, Callable[[Setup], "Policy"]] | None:
        """Return the fallback for a policy that failed; None: first come, first served, for all models.

        `applied`: number of its last commands that were applied before one was rejected, 0 if it raised. A composite
        policy returns the name of the failed part, for reports, and a function that creates the same policy with that
        part replaced.
        """
        return None

    def is_readmitted(self, request: Request) -> bool:
        """Whether an arriving request was counted before (`readmitted_ids`). Call it at most once for each request."""
        if request.id not in self.readmitted_ids:
            return False
        self.readmitted_ids.discard(request.id)
        return True

    def new_batch_id(self) -> int:
        """Return a batch id that was never used."""
        return self.batch_ids.draw()

    def handle(self, event: AnyEvent) -> Commands:
        """Call the handler that is named after the event, and return its commands."""
        handler: Callable[[AnyEvent], Commands] = getattr(self, HANDLER_NAMES[type(event)])
        return handler(event)

    @abstractmethod
    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Handle a request that was queued."""

    @abstractmethod
    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Handle the cancellation of a queued request."""

    @abstractmethod
    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Handle a worker that can be given a batch."""

    @abstractmethod
    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Handle a new idle worker."""

    @abstractmethod
    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Handle the loss of a worker."""

    @abstractmethod
    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Handle a changed profile."""

    def on_stage_finished(self, event: StageFinished) -> Commands:
        """Handle the end of a stage; optional for policies that do not track running batches."""
        return ()

    def on_batch_failed(self, event: BatchFailed) -> Commands:
        """Handle a failed batch; optional for policies that do not track running batches."""
        return ()

    def on_worker_delayed(self, event: WorkerDelayed) -> Commands:
        """Handle a worker that is not ready after all; comes only with `supports_pipelined_dispatch`."""
        return ()

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """Handle a timer that is due; optional for policies that set none."""
        return ()

    def on_latency_distribution_updated(self, event: LatencyDistributionUpdated) -> Commands:
        """Handle a changed latency distribution; optional for policies that use profiles only."""
        return ()

    def on_timer_latency_updated(self, event: TimerLatencyUpdated) -> Commands:
        """Handle a changed timer latency; optional for policies that do not wait until the last moment."""
        return ()
