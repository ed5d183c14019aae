"""Clockwork: a candidate for each batch size, the most urgent first (Symphony, section 2.2)."""

from itertools import islice

from tidegate.api import Profile
from tidegate.toolkit import FormedBatch, RequestQueue
from tidegate_baselines.early_drop import EarlyDrop


class Clockwork(EarlyDrop):
    """Clockwork: one candidate for each queue and batch size; a free worker takes the one with the earliest latest
    start.

    The candidate of a size begins at the first request that leaves time for a batch of that size. In the paper
    (Gujarati et al., *Serving DNNs like Clockwork*) there is a queue for each batch size, from which requests are
    removed that cannot be on time at that size. Requests before the batch that runs are dropped. Large batches are not
    preferred.
    """

    gives_up_skipped = True

    def candidate(self, now_ns: int, queue: RequestQueue, profile: Profile) -> FormedBatch | None:
        """Return the candidate of any size with the earliest latest start at `now_ns`; None if there is none.

        `profile`: latency on the worker.
        """
        best: FormedBatch | None = None
        best_rank = 0
        start = 0
        for count in range(1, len(queue) + 1):
            candidate = self._of_size(now_ns, queue, profile, start, count)
            if candidate is None:
                break
            start = candidate.start  # what cannot wait for this size cannot wait for a larger one
            rank = self.rank(candidate, profile)
            if best is None or rank < best_rank:
                best, best_rank = candidate, rank
        return best

    def rank(self, candidate: FormedBatch, profile: Profile) -> int:
        """Return the latest start of a candidate, in ns; batches without a deadline come last, the smallest last of
        all.
        """
        return candidate.due_ns - profile.upper_ns(candidate.rows)

    def _of_size(
        self, now_ns: int, queue: RequestQueue, profile: Profile, start: int, count: int
    ) -> FormedBatch | None:
        """The first run of `count` requests, from `start` on, that is on time; None where there is none."""
        while start + count <= len(queue):
            run = list(islice(queue, start, start + count))
            rows = sum(request.rows for request in run)
            if rows > queue.model.merged_rows and count > 1:
                return None
            due_ns = min(request.deadline_ns for request in run)
            if now_ns + profile.upper_ns(rows) <= due_ns:
                return FormedBatch(start, count, rows, due_ns)
            start += 1
        return None
