"""First idle, first served: what a serving system does that knows nothing of deadlines (PARIS/ELSA, section 5)."""

from pydantic import Field

from tidegate.api import PolicyOptions
from tidegate.toolkit import FirstComeFirstServed, RequestQueue


class FifsOptions(PolicyOptions):
    """Options of the policy `fifs`."""

    max_rows: int | None = Field(default=None, ge=1, description="Largest batch in rows; 1: never batch")


class Fifs(FirstComeFirstServed):
    """First in, first served: the first idle worker takes the oldest request and those that wait behind it, however
    late."""

    Options = FifsOptions
    options: FifsOptions

    def largest_batch(self, queue: RequestQueue) -> int:
        """Return the model's limit, or the option if it is smaller."""
        return min(queue.model.merged_rows, self.options.max_rows or queue.model.max_rows)
