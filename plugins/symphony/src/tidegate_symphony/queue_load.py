"""Arrivals of one queue, and the batch size that they need."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Self

from tidegate.toolkit import ArrivalRate, BatchTarget
from tidegate_symphony.applications import SimilarRequests
from tidegate_symphony.latency_bounds import LESS_SURE, QueueOutlook

MAX_KEYS = 64
"""The number of merge keys, the latest, of which the rates are known; with others nothing is expected to come."""


@dataclass(slots=True)
class QueueLoad:
    """Arrivals of one queue (model and shape), and their cost."""

    rate: ArrivalRate
    targets: tuple[BatchTarget, ...]
    """The sizes that batches should have at this rate, one for each degree of promises."""
    outlook: QueueOutlook | None = None
    """Latency outlook; None: no worker hosts it, or it was not needed since workers or profiles changed."""
    needed_rows: float = 1.0
    """The size that its batches need; inf: no size carries the load."""
    rates_of_keys: OrderedDict[str, ArrivalRate] = field(default_factory=OrderedDict)
    """The rates by merge key, that of the latest request last: what has another key joins no batch."""
    alike: tuple[SimilarRequests, ...] = ()
    """The groups of its requests whose batches take more or less long, the last one all; as old as the outlook."""

    @classmethod
    def of(cls, rate: ArrivalRate, *, needed_rows: float = 1.0) -> Self:
        """Create the load of a queue with a given rate; its latency outlook is computed later."""
        return cls(rate, tuple(BatchTarget(rate) for _ in (1, *LESS_SURE)), needed_rows=needed_rows)

    def rate_of_key(self, merge_key: str, now_ns: int) -> ArrivalRate:
        """Return the rate of a merge key of which a request arrives; clients choose keys, so that few are kept."""
        rates = self.rates_of_keys
        rate = rates.get(merge_key)
        if rate is None:
            if len(rates) == MAX_KEYS:
                rates.popitem(last=False)
            rate = rates[merge_key] = ArrivalRate(now_ns)
        else:
            rates.move_to_end(merge_key)
        return rate

    def forget_plans(self) -> None:
        """Discard the target after a change of workers or profiles."""
        self.outlook, self.alike = None, ()
        for target in self.targets:
            target.forget()
