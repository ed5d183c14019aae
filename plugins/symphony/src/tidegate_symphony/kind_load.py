"""What arrives of one kind of requests, and how large batches it needs."""

from dataclasses import dataclass

from tidegate.toolkit import ArrivalRate
from tidegate_symphony.outlook import Outlook


@dataclass(slots=True)
class KindLoad:
    """What arrives of one kind, and what that costs."""

    rate: ArrivalRate
    outlook: Outlook
    needed_rows: float = 1.0
    """The size that its batches need; inf: no size carries the load."""
