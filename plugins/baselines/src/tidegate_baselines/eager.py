"""Eager batching: an idle worker starts at once what can be on time (Symphony, sections 2.2 and 3.4, k = 0)."""

from collections.abc import Collection
from typing import Literal, Self

from pydantic import Field

from tidegate.api import NEVER_NS, Commands, PolicyOptions, Profile, RequestArrived, Setup
from tidegate.toolkit import ArrivalRate, BatchTarget, FormedBatch, RequestQueue
from tidegate_baselines.early_drop import NEXUS_BATCH_FORMATION, EarlyDrop


class EagerOptions(PolicyOptions):
    """Options of the policy `eager`."""

    batch_formation: Literal["keep_head", "skip_head"] = Field(
        default="keep_head",
        description="Start of a batch: the oldest request (keep_head), or the first one with time for the batch size "
        "that the load needs (skip_head)",
    )


class Eager(EarlyDrop):
    """Eager batching: Algorithm 1 of Symphony without deferral, so only the start of batches differs.

    A worker that becomes free takes, among all queues, the batch with the earliest latest start.
    """

    Options = EagerOptions

    def __init__(self, setup: Setup, options: EagerOptions) -> None:
        super().__init__(setup, options)
        self._by_window = options.batch_formation == "skip_head"
        self._targets: dict[tuple[str, str], BatchTarget] = {}
        """The sizes that batches should have, by model and shape: what can share batches."""

    def migrate(self, setup: Setup) -> Self:
        """Return the next policy, with the learned rates."""
        follower = super().migrate(setup)
        follower._targets = {kind: target for kind, target in self._targets.items() if kind[0] in follower.models}
        for target in follower._targets.values():
            target.forget()
        return follower

    def candidate(self, now_ns: int, queue: RequestQueue, profile: Profile) -> FormedBatch | None:
        """Return the longest run of requests that is on time if it starts at `now_ns`; None if there is none.

        `profile`: latency on the worker.
        """
        model = queue.model
        if self._by_window and model.slo_ns is not None:
            workers = self.idle.count_hosting(model.name)
            target = self._targets[model.name, queue.shape].rows(now_ns, profile, model.slo_ns, workers)
            if batch := NEXUS_BATCH_FORMATION.window(queue, profile, now_ns, target):
                return batch
        return NEXUS_BATCH_FORMATION.keep_head(queue, profile, now_ns)

    def rank(self, candidate: FormedBatch, profile: Profile) -> int:
        """Return the latest start of a candidate, in ns; NEVER_NS without a deadline."""
        return NEVER_NS if candidate.due_ns == NEVER_NS else candidate.due_ns - profile.upper_ns(candidate.rows)

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Count the request towards the rate of its model and shape, and queue it."""
        if self._by_window and not self.is_readmitted(event.request):
            key = event.request.model, event.request.shape
            target = self._targets.get(key)
            if target is None:
                target = self._targets[key] = BatchTarget(ArrivalRate(event.now_ns))
            target.rate.observe(event.now_ns, event.request.rows)
        return super().on_request_arrived(event)

    def forget_plans(self, partitions: Collection[str], shape: str | None = None) -> None:
        """Discard the target batch size after a change of workers or profiles."""
        super().forget_plans(partitions, shape)
        for kind, target in self._targets.items():
            if kind[0] in partitions and shape in (None, kind[1]):
                target.forget()
