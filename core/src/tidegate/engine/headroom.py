"""What is kept free before every deadline: the time an answer takes from the end of its last leg to the client.

A policy plans until the answer is there; its client counts until it has it. A part of that way is seen, from the end of
a leg until its answers are handed to the transports. The rest (sockets, the client's own work) is not, and is taken to
be as long. How long a client takes to read is not seen either: slow readers bring nobody's deadline forward.
"""

from tidegate.api import NEVER

GAIN = 1 / 64
"""The gain of the running mean and mean deviation, as TCP estimates its round trips: the last hundred batches count."""
DEVIATIONS = 2.0
UNSEEN = 2.0
"""Whole way / visible part."""
AT_FIRST_NS = 1_000_000
"""The mean before anything is observed: without one, the first requests would be held until it is too late to wake."""
LARGEST_SHARE = 0.1
"""The largest share of what a request has left: under overload no policy must be starved by the lag that it brings."""


class Headroom:
    """Learns the way back from the answers given."""

    def __init__(self) -> None:
        self._mean_ns = float(AT_FIRST_NS)
        self._deviation_ns = AT_FIRST_NS / 2

    def observe(self, lag_ns: int) -> None:
        """The answers of a batch were handed over this long after its last leg had ended."""
        surprise = lag_ns - self._mean_ns
        self._mean_ns += GAIN * surprise
        self._deviation_ns += GAIN * (abs(surprise) - self._deviation_ns)

    @property
    def way_ns(self) -> int:
        """How long the way from the end of a leg to the client is on average; what is kept free is longer."""
        return round(UNSEEN * self._mean_ns)

    def before(self, deadline_ns: int, now_ns: int) -> int:
        """The instant by which the answer must be there for the client to have it by the deadline; or as it is.

        NEVER stays what it is, and so does what has passed.
        """
        if deadline_ns == NEVER or deadline_ns <= now_ns:
            return deadline_ns
        estimate_ns = UNSEEN * (self._mean_ns + DEVIATIONS * self._deviation_ns)
        return deadline_ns - round(min(estimate_ns, LARGEST_SHARE * (deadline_ns - now_ns)))
