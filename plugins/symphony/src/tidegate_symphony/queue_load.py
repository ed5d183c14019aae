"""Arrivals of one queue, and the batch size that they need."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Self

from tidegate.toolkit import ArrivalRate, BatchTarget
from tidegate_symphony.applications import SimilarRequests
from tidegate_symphony.latency_bounds import QueueOutlook

MAX_KEYS = 64
"""Maximum number of merge keys with known rates, the latest ones; for others no arrivals are expected."""


@dataclass(slots=True)
class QueueLoad:
    """Arrivals of one queue (model and shape), and their cost."""

    rate: ArrivalRate
    target: BatchTarget
    """Target batch size at this rate."""
    outlook: QueueOutlook | None = None
    """Latency outlook; None: no worker hosts the model, or it was not needed since a change of workers or profiles."""
    needed_rows: float = 1.0
    """Rows that its batches need; infinite if no size sustains the load."""
    rates_of_keys: OrderedDict[str, ArrivalRate] = field(default_factory=OrderedDict)
    """Rates by merge key, that of the latest request last; requests with other keys join no batch."""
    alike: tuple[SimilarRequests, ...] = ()
    """Groups of its requests by latency, the last one all; computed together with the outlook."""

    @classmethod
    def of(cls, rate: ArrivalRate, *, needed_rows: float = 1.0) -> Self:
        """Create the load of a queue with a given rate; its latency outlook is computed later.

        `needed_rows`: initial batch size.
        """
        return cls(rate, BatchTarget(rate), needed_rows=needed_rows)

    def rate_of_key(self, merge_key: str, now_ns: int) -> ArrivalRate:
        """Return the rate of a merge key at the arrival of a request; only few are kept, because clients choose
        keys.
        """
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
        self.target.forget()
