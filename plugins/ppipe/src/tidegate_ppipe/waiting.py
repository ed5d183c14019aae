"""What waits at the first pool, and the batch that could leave."""

from typing import TYPE_CHECKING

from tidegate.api import NEVER, Model, QueueKey
from tidegate.toolkit import RequestQueue
from tidegate_ppipe.paths import Path
from tidegate_ppipe.routes import Route

if TYPE_CHECKING:
    from collections.abc import Sequence


class Queue(RequestQueue):
    """What waits, and until when."""

    __slots__ = ("budget", "due_ns", "waits_for_rows", "wake_ns", "wake_rows", "work_ns")

    def __init__(self, key: QueueKey, model: Model) -> None:
        super().__init__(key, model)
        self.waits_for_rows = 0
        """There is nothing to decide before so many rows wait, or the timer fires; 0: there is."""
        self.due_ns = NEVER
        """By when all that waits has to be done with what is planned."""
        self.budget = 1.0
        """The part of a request's time that this is."""
        self.wake_ns = NEVER
        """When the timer fires."""
        self.wake_rows = 0
        """How many rows waited when that was decided."""
        self.work_ns: Sequence[int] = ()
        """What they take on the way that was chosen, by rows - 1."""


class Found:
    """A batch that could leave, and how."""

    __slots__ = ("count", "due_ns", "path", "route", "rows", "shape", "size")

    def __init__(self, route: Route, shape: str, size: int, count: int, rows: int, due_ns: int, path: Path) -> None:
        self.route = route
        self.shape = shape
        """Of its requests."""
        self.size = size
        """The rows that could be in time."""
        self.count = count
        """The requests that wait, up to so many rows."""
        self.rows = rows
        """Theirs."""
        self.due_ns = due_ns
        """The earliest of their deadlines."""
        self.path = path
        """For them."""
