"""What the proxy holds at most, and what it says beyond."""

from dataclasses import dataclass, field

import grpc

from tidegate_proxy.configuration.config import Ejection

LEG_FACTOR = 10
LEG_FLOOR_S = 30.0


@dataclass(frozen=True)
class Limits:
    """Bounds of the queue as a whole; a policy may drop before they are reached."""

    requests: int = 100_000
    """Requests that wait for their answers."""
    bytes: int = 8 << 30
    """Their messages, together."""
    leg_s: float | None = None
    """How long a batch may run before it counts as hung, though its Triton answers probes. None: ten times as long as
    planned, and `LEG_FLOOR_S` at least."""
    ejection: Ejection = field(default_factory=Ejection)
    """Which Tritons are given nothing for a while."""
    retry_share: float = 1.0
    """Requests that are tried again because another spoiled their batch, at most, per request that comes."""
    shed_status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    """What a client is told whose request is shed or dropped. Some clients try UNAVAILABLE again by themselves."""

    def leg_ns(self, planned_ns: int) -> int:
        """How long a leg may take that is planned to take `planned_ns`."""
        if self.leg_s is not None:
            return round(self.leg_s * 1e9)
        return max(LEG_FACTOR * planned_ns, round(LEG_FLOOR_S * 1e9))
