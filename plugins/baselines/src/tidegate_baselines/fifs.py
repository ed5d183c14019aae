"""First idle, first served: a scheduler that ignores deadlines (PARIS/ELSA, section 5)."""

from pydantic import Field

from tidegate.api import PolicyOptions
from tidegate.toolkit import FirstComeFirstServed, RequestQueue


class FifsOptions(PolicyOptions):
    """Options of the policy `fifs`."""

    max_rows: int | None = Field(default=None, ge=1, description="Maximum batch size in rows; 1: no batching")


class Fifs(FirstComeFirstServed):
    """First in, first served: the first idle worker takes the oldest request and those behind it, however late."""

    Options = FifsOptions
    options: FifsOptions

    def largest_batch(self, queue: RequestQueue) -> int:
        """Return the maximum rows of a batch: the model's limit, or the option if it is smaller."""
        return min(queue.model.merged_rows, self.options.max_rows or queue.model.max_rows)
