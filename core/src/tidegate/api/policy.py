"""The data plane's contract: a policy turns events into commands.

A policy is a plain deterministic object: no clock (every event says when it is), no threads, no network, and randomness
only from the generator it is given. The same object runs in the simulator and in the proxy.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Self

import msgspec
from pydantic import BaseModel, ConfigDict

from tidegate.api.commands import AnyCommand
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
from tidegate.api.network import Network
from tidegate.api.profile import Profile

Commands = Sequence[AnyCommand]
"""What every handler returns, in the order in which the engine is to apply them."""


_HANDLERS: dict[type, str] = {
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


PATIENCE_NS = 1_000_000_000


class Setup(msgspec.Struct, frozen=True):
    """What a policy knows when it is made. It never learns true service times."""

    models: tuple[Model, ...]
    workers: tuple[Worker, ...]
    """The workers that are there at the start, all idle."""
    profiles: tuple[Profile, ...]
    """One for every (partition, kind) that some worker hosts, of the empty shape; and those of the shapes that are
    known. Of a shape that is met later, ProfileUpdated tells before the first request arrives."""
    seed: int = 0
    first_batch_id: int = 0
    timer_latency_ns: int = 0
    """How late a timer may fire: under virtual time never, live as the operating system pleases.

    Where a policy is made; what is observed later comes as TimerLatencyUpdated.
    """
    network: Network | None = None
    """Between the nodes of the workers; None: what goes from stage to stage takes no time of its own."""
    no_slo_max_deferral_ns: int = PATIENCE_NS
    """How long requests without a deadline wait for those that have one; then workers are theirs in turn, too."""
    latency_distributions: tuple[LatencyDistribution, ...] = ()
    """How long the requests of applications run alone, as far as that is known."""


class PolicyOptions(BaseModel):
    """Base of a policy's options: validated. An unknown name is an error, and so is a number that is infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BatchIds:
    """Numbers for batches, in the order in which they are dispatched."""

    __slots__ = ("_next",)

    def __init__(self, first: int) -> None:
        self._next = first

    def draw(self) -> int:
        """A number that was never drawn."""
        self._next += 1
        return self._next - 1


class Policy(ABC):
    """One method per event, each returning commands; the engine calls them one at a time, in the order of time.

    What a handler may count on: a RequestArrived request is queued until the policy dispatches or drops it or its
    RequestCancelled comes; a worker runs what is booked on it, in the order of the planned starts; whenever it may be
    given something new, WorkerReady tells.
    """

    Options: ClassVar[type[PolicyOptions]] = PolicyOptions
    best_effort: bool = False
    """True: may dispatch what is predicted to be late (invariant 8 is not asked of it)."""
    early_drop_reason: str = ""
    """Why this policy may drop what an idle worker would answer in time, in a sentence; empty: it does not.

    With a reason, invariant 10 is not asked of it.
    """
    quantile: float = 0.99
    """The share of stages that is to be done by when it was planned: what `Profile.upper_ns` is learned to cover."""
    runs_pipelines: ClassVar[bool] = False
    """True: schedules models that are split into partitions (`Model.pipelines`), too."""
    awaits_ready: bool = True
    """Whether it gives work only to workers that WorkerReady told of. False: it keeps books of its own of them.

    The engine then runs no batch of late requests (`Model.on_deadline_miss`) on a worker before it tells of it.
    """
    supports_pipelined_dispatch: bool = False
    """True: a worker is told to be ready (WorkerReady) before the stage that it runs is over, so that it never idles.

    The policy plans the start of what it then dispatches for the event's `free_ns`.
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
        """Raises ValueError for a model that this policy cannot schedule."""
        split = next((model.name for model in models if model.pipelines), None)
        if split is not None and not cls.runs_pipelines:
            raise ValueError(
                f"it schedules whole models only, and {split!r} is split into partitions: "
                "choose a policy that runs pipelines, such as ppipe, or serve the model unsplit"
            )

    def check_plan(self, models: Iterable[Model], workers: Iterable[Worker]) -> None:
        """Raises ValueError for models or workers with which no successor of this policy can go on."""
        self.check_models(models)

    def check_worker(self, worker: Worker) -> None:  # noqa: B027 - most can use any
        """Raises ValueError for a worker that is to join and that this policy cannot use."""

    def is_best_effort(self, model: str) -> bool:
        """Whether it may dispatch requests of a model that are predicted to be late."""
        return self.best_effort

    def separate_applications(self, model: str) -> bool:
        """Whether requests of a model's applications that take longer are told apart for this policy: by their shape.

        Then the profile of each class is made of the distributions that are learned, of which the policy itself need
        know nothing.
        """
        return False

    def migrate(self, setup: Setup) -> Self:
        """The policy that goes on where the models, workers or network have changed: of the same class and options.

        One that learns hands over what still holds, and makes the rest anew from `setup`. What waits is told to the
        successor as arrivals, though it has arrived before.
        """
        return type(self)(setup, self.options)

    def repaired(self, setup: Setup) -> Self:
        """Make the policy that follows this one when the parts of it that broke are tried again (`fallback`)."""
        return self.migrate(setup)

    def fallback(self, applied: int) -> tuple[str, Callable[[Setup], "Policy"]] | None:
        """Who goes on where this policy broke; None: first come, first served, for all of it.

        `applied`: so many of the commands with which it just answered were carried out, and the next one was refused;
        or it raised instead of answering. A policy that is made of several says which part broke, as a name for
        reports, and what makes the same policy with that part replaced.
        """
        return None

    def is_readmitted(self, request: Request) -> bool:
        """Whether a request that arrives is one of the `readmitted_ids`, which were counted before; asked once of
        each."""
        if request.id not in self.readmitted_ids:
            return False
        self.readmitted_ids.discard(request.id)
        return True

    def new_batch_id(self) -> int:
        """A batch id that was never used."""
        return self.batch_ids.draw()

    def handle(self, event: AnyEvent) -> Commands:
        """Let the method that is named after the event answer it."""
        handler: Callable[[AnyEvent], Commands] = getattr(self, _HANDLERS[type(event)])
        return handler(event)

    @abstractmethod
    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """A request is queued."""

    @abstractmethod
    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """A queued request is gone."""

    @abstractmethod
    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """A worker may be given a batch."""

    @abstractmethod
    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """An idle worker appeared."""

    @abstractmethod
    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """A worker is gone."""

    @abstractmethod
    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """An expectation moved."""

    def on_stage_finished(self, event: StageFinished) -> Commands:
        """A stage is over; a policy that keeps no books of what runs need not care."""
        return ()

    def on_batch_failed(self, event: BatchFailed) -> Commands:
        """A batch failed; a policy that keeps no books of what runs need not care."""
        return ()

    def on_worker_delayed(self, event: WorkerDelayed) -> Commands:
        """A worker is not ready after all; a policy that does not overlap stages is never told."""
        return ()

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """A timer came due; a policy that sets none need not care."""
        return ()

    def on_latency_distribution_updated(self, event: LatencyDistributionUpdated) -> Commands:
        """A distribution moved; a policy that plans with profiles only need not care."""
        return ()

    def on_timer_latency_updated(self, event: TimerLatencyUpdated) -> Commands:
        """Timers fire otherwise than was known; a policy that waits for no last moment need not care."""
        return ()
