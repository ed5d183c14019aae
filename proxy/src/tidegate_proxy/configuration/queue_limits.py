"""How much may wait for its answer."""

from dataclasses import dataclass

FULL_OF = ("requests", "bytes")
"""What queues can be full of."""
RESERVE = 0.1
"""So much more, as a share, may wait when what comes is of a client or a model that has little waiting."""


@dataclass(slots=True)
class Load:
    """How much waits."""

    requests: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of the queue as a whole; a policy may drop before they are reached."""

    requests: int = 100_000
    """Requests that wait for their answers."""
    bytes: int = 8 << 30
    """Their messages, together."""
    client_share: float = 0.01
    """A share of requests and bytes: an owner with less than that is not refused because others fill the queue."""
    model_share: float = 0.1
    """The same for a model."""

    def refusal(self, waiting: Load, of_client: Load, of_model: Load) -> str:
        """Why one more request is refused where so much waits in all, of its client and of its model; "": it is not."""
        full = self._reached_by(waiting, 1)
        if not full or self._reached_by(waiting, 1 + RESERVE):
            return full
        shares = ((of_client, self.client_share), (of_model, self.model_share))
        return "" if any(not self._reached_by(load, share) for load, share in shares) else full

    def _reached_by(self, load: Load, share: float) -> str:
        """Which limit is reached, of the whole or of a share of it."""
        if load.requests >= int(self.requests * share):
            return "requests"
        return "bytes" if load.bytes >= int(self.bytes * share) else ""
