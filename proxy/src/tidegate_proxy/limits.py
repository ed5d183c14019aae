"""What the proxy holds at most, and what it says beyond."""

from dataclasses import dataclass

import grpc


@dataclass(frozen=True)
class Limits:
    """Bounds of the queue as a whole; a policy may drop before they are reached."""

    requests: int = 100_000
    """Requests that wait for their answers."""
    bytes: int = 8 << 30
    """Their messages, together."""
    shed_status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    """What a client is told whose request is shed or dropped. Some clients try UNAVAILABLE again by themselves."""
