"""Timeout batching: a batch starts a time k after its oldest request arrived (Symphony, sections 2.2 and 3.4)."""

from itertools import islice

from pydantic import Field

from tidegate.api import Profile, Setup, ms_to_ns
from tidegate.toolkit import FormedBatch, RequestQueue
from tidegate_baselines.eager import Eager, EagerOptions


class TimeoutOptions(EagerOptions):
    """Options of the policy `timeout`: k is the sum of its two delays."""

    timeout_ms: float = Field(
        default=5.0, ge=0, description="Time in ms for which a batch waits for more requests, for every model"
    )
    slo_share: float = Field(
        default=0.0, ge=0, le=1, description="Additional waiting time as a fraction of the model's SLO (Figure 6b)"
    )


class Timeout(Eager):
    """Timeout batching: `exec = max(now, oldest arrival + k)`; a full batch does not wait."""

    Options = TimeoutOptions

    def __init__(self, setup: Setup, options: TimeoutOptions) -> None:
        super().__init__(setup, options)
        self._timeouts = {
            model.name: ms_to_ns(options.timeout_ms) + round(options.slo_share * (model.slo_ns or 0))
            for model in setup.models
        }

    def candidate(self, now_ns: int, queue: RequestQueue, profile: Profile) -> FormedBatch | None:
        """Return the longest run that is on time, once its oldest request has waited for k or the batch is full.

        `profile`: latency on the worker. None before, or if no run is on time.
        """
        batch = super().candidate(now_ns, queue, profile)
        return batch if batch and now_ns >= self._exec_ns(queue, batch) else None

    def wake_ns(self, now_ns: int, queue: RequestQueue, fastest: Profile) -> int:
        """Return the time in ns at which the oldest request has waited for k, if a worker may be idle then, or is
        hopeless.

        `fastest`: profile of the fastest worker.
        """
        hopeless_ns = super().wake_ns(now_ns, queue, fastest)
        batch = super().candidate(now_ns, queue, fastest)
        exec_ns = self._exec_ns(queue, batch) if batch else now_ns
        return min(exec_ns, hopeless_ns) if exec_ns > now_ns else hopeless_ns

    def _exec_ns(self, queue: RequestQueue, batch: FormedBatch) -> int:
        oldest = next(islice(queue, batch.start, None))
        return oldest.arrival_ns + (0 if batch.rows >= queue.model.merged_rows else self._timeouts[queue.model.name])
