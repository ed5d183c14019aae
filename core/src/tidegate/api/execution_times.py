"""How long the requests of one application run alone: a distribution, for models whose time depends on the data."""

from bisect import bisect_right

import msgspec


class ExecutionTimes(msgspec.Struct, frozen=True):
    """The stand-alone execution times of one application's requests to a model, on one kind of worker.

    A batch of k requests is padded to its longest: it takes `fixed_ns + scale * k * max(times)` (Orloj, section 4.1,
    with c0 and c1). Where c0 is known, times are stretched about their mean, so that this law is what batches take.
    """

    model: str
    app: str
    """The tag of the requests (`Request.app`)."""
    kind: str
    """The kind of the workers that they ran on."""
    times_ns: tuple[int, ...]
    """Equally probable times in ns, rising, at least one: as many points of the distribution as were worth telling."""
    fixed_ns: float = 0.0
    """What a batch costs besides its requests: c0."""
    scale: float = 1.0
    """What a request adds of its own time where it runs with others: c1."""

    @property
    def mean_ns(self) -> float:
        """The mean time."""
        return sum(self.times_ns) / len(self.times_ns)

    def share_within(self, time_ns: float) -> float:
        """The probability that a request takes no longer than that: the distribution function F."""
        return bisect_right(self.times_ns, time_ns) / len(self.times_ns)

    def expected_batch_ns(self, requests: int) -> float:
        """What a batch of so many requests of this application is expected to take: c0 + c1 * k * E[max of k]."""
        count, longest_ns = len(self.times_ns), 0.0
        for rank, time_ns in enumerate(self.times_ns):
            longest_ns += time_ns * (((rank + 1) / count) ** requests - (rank / count) ** requests)
        return self.fixed_ns + self.scale * requests * longest_ns
