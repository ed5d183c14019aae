"""What arrives of one kind of requests, and how large batches it needs."""

from dataclasses import dataclass
from typing import Self

from tidegate.toolkit import ArrivalRate, BatchTarget
from tidegate_symphony.applications import Alike
from tidegate_symphony.outlook import LESS_SURE, Outlook


@dataclass(slots=True)
class KindLoad:
    """What arrives of one kind (model and shape), and what that costs."""

    rate: ArrivalRate
    targets: tuple[BatchTarget, ...]
    """The sizes that batches should have at this rate, one for each degree of promises."""
    outlook: Outlook | None = None
    """What the workers promise; None: no worker hosts it, or nobody has asked since they or their profiles changed."""
    needed_rows: float = 1.0
    """The size that its batches need; inf: no size carries the load."""
    alike: tuple[Alike, ...] = ()
    """The groups of its requests whose batches take more or less long, the last one all; as old as the outlook."""

    @classmethod
    def of(cls, rate: ArrivalRate, *, needed_rows: float = 1.0) -> Self:
        """The load of what arrives at a rate; what the workers promise is to be found."""
        return cls(rate, tuple(BatchTarget(rate) for _ in (1, *LESS_SURE)), needed_rows=needed_rows)

    def forget_plans(self) -> None:
        """The workers or their profiles changed: no target stands."""
        self.outlook, self.alike = None, ()
        for target in self.targets:
            target.forget()
