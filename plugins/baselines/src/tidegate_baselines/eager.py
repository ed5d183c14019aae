"""Eager batching: an idle worker takes at once what can still be in time (Symphony, sections 2.2 and 3.4, k = 0)."""

from typing import Literal

from pydantic import Field

from tidegate.api import (
    NEVER,
    BatchTarget,
    Commands,
    Gathered,
    PolicyOptions,
    Profile,
    ProfileUpdated,
    RequestArrived,
    RequestQueue,
    Setup,
    WorkerJoined,
    WorkerLost,
)
from tidegate_baselines.early_drop import GATHERING, EarlyDrop


class EagerOptions(PolicyOptions):
    """Options of `eager`."""

    gathering: Literal["keep-head", "window"] = Field(
        default="keep-head",
        description="keep-head: a batch begins at the oldest request; window: at the first that leaves time for the "
        "size that the load needs",
    )


class Eager(EarlyDrop):
    """Algorithm 1 of Symphony without deferral: only where the batch starts differs, so that nothing else is compared.

    A worker that frees takes, of the queues, the batch whose latest start is closest.
    """

    Options = EagerOptions

    def __init__(self, setup: Setup, options: EagerOptions) -> None:
        super().__init__(setup, options)
        self._by_window = options.gathering == "window"
        self._targets: dict[str, BatchTarget] = {}

    def candidate(self, now_ns: int, queue: RequestQueue, profile: Profile) -> Gathered | None:
        """The longest run that is in time."""
        model = queue.model
        if self._by_window and model.slo_ns is not None:
            workers = self.idle.count_hosting(model.name)
            target = self._targets[model.name].rows(now_ns, profile, model.slo_ns, workers)
            if batch := GATHERING.window(queue, profile, now_ns, target):
                return batch
        return GATHERING.keep_head(queue, profile, now_ns)

    def rank(self, candidate: Gathered, profile: Profile) -> int:
        """Its latest start."""
        return NEVER if candidate.due_ns == NEVER else candidate.due_ns - profile.latency_ns(candidate.rows)

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Count it towards its model's rate, then queue it."""
        if self._by_window:
            target = self._targets.get(event.request.model)
            if target is None:
                target = self._targets[event.request.model] = BatchTarget(event.now_ns)
            target.rate.observe(event.now_ns, event.request.rows)
        return super().on_request_arrived(event)

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """More workers ask for larger batches."""
        self._forget_targets()
        return super().on_worker_joined(event)

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Fewer workers ask for smaller batches."""
        self._forget_targets()
        return super().on_worker_lost(event)

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """The size that the load needs depends on it."""
        self._forget_targets()
        return super().on_profile_updated(event)

    def _forget_targets(self) -> None:
        for target in self._targets.values():
            target.forget()
