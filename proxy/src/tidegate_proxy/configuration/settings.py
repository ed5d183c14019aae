"""Settings that can change while requests are in flight: one immutable value, replaced as a whole."""

from dataclasses import dataclass, field
from typing import Final

import grpc

from tidegate_proxy.configuration.config import BatchVerification, OutlierDetection, ServeConfig

STAGE_FACTOR: Final = 10
STAGE_FLOOR_S: Final = 30.0
NO_LIMIT: Final = 1 << 63


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of what waits for its answer, as a whole; a policy may drop before they are reached."""

    requests: int = 100_000
    """Requests that wait for their answers."""
    bytes: int = 8 << 30
    """Their messages, together."""
    reserved_queue_fraction_per_client: float = 0.01
    """A share of requests and bytes: an owner with less than that is not refused because others fill the queue."""
    reserved_queue_fraction_per_model: float = 0.1
    """The same for a model."""


@dataclass(frozen=True)
class CurrentSettings:
    """How Tidegate behaves, beside what its Tritons serve (the catalog) and who may call (the gate)."""

    queue: QueueLimits = field(default_factory=QueueLimits)
    shed_status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    """Status for clients whose request is shed or dropped. Some clients retry UNAVAILABLE by themselves."""
    max_tries: int = 2
    """How often a request is tried whose Tritons are lost."""
    retry_share: float = 1.0
    """Requests that are tried again because another spoiled their batch, at most, per request that comes."""
    stage_s: float | None = None
    """How long a batch may run before it counts as hung, though its Triton answers probes. None: ten times as long as
    planned, and `STAGE_FLOOR_S` at least."""
    outlier_detection: OutlierDetection = field(default_factory=OutlierDetection)
    """Settings of outlier detection."""
    batch_verification: BatchVerification = field(default_factory=BatchVerification)
    """Whether answers in a batch are compared with those that a request has alone."""
    health_timeout_s: float = 4.0
    """After which a Triton counts as hung that answers neither inferences nor health probes."""
    liveness_timeout_s: float = 4.0
    """How long a part of Tidegate may give no sign of life."""
    max_shared_bytes: int = NO_LIMIT
    """Shared memory with Tritons on this machine, in all."""
    max_in_flight_bytes: int = NO_LIMIT
    """Requests that are read or not answered yet, in all."""
    max_response_buffer_bytes: int = NO_LIMIT
    """Answers that their clients have not taken, in all."""
    max_response_buffer_bytes_per_connection: int = NO_LIMIT
    """The same of one connection, where it is more than one answer."""
    refuses_shared_memory: bool = False
    """Whether tensors in shared memory are refused rather than left to a Triton."""
    shadow: bool = False
    """Whether every request passes as it is, and is only looked at."""
    canary: float | None = None
    """For which share of the time requests are scheduled, and else pass as they are; None: always."""

    def stage_ns(self, upper_ns: int) -> int:
        """How long a stage may take that is planned to take `upper_ns`."""
        if self.stage_s is not None:
            return round(self.stage_s * 1e9)
        return max(STAGE_FACTOR * upper_ns, round(STAGE_FLOOR_S * 1e9))


def settings_of(config: ServeConfig) -> CurrentSettings:
    """Return the settings of a configuration."""
    limits = config.limits
    return CurrentSettings(
        queue=QueueLimits(
            limits.max_queue_size,
            int(limits.max_queue_bytes),
            limits.reserved_queue_fraction_per_client,
            limits.reserved_queue_fraction_per_model,
        ),
        shed_status=grpc.StatusCode[config.shedding.status],
        max_tries=config.retries.max + 1,
        retry_share=config.retries.budget,
        stage_s=limits.execution_timeout_s,
        outlier_detection=config.outlier_detection,
        batch_verification=config.batch_verification,
        health_timeout_s=limits.health_timeout_s,
        liveness_timeout_s=limits.liveness_timeout_s,
        max_shared_bytes=int(limits.max_shared_bytes),
        max_in_flight_bytes=int(limits.max_bytes_in_flight),
        max_response_buffer_bytes=int(limits.max_response_buffer_bytes),
        max_response_buffer_bytes_per_connection=int(limits.max_response_buffer_bytes_per_connection),
        refuses_shared_memory=config.shared_memory == "refuse",
        shadow=config.shadow,
        canary=config.canary,
    )


class InForce:
    """Holds the settings that are in force: whoever uses them looks here, once per request."""

    __slots__ = ("settings",)

    def __init__(self, settings: CurrentSettings = CurrentSettings()) -> None:
        self.settings = settings

    def change(self, settings: CurrentSettings) -> None:
        """Let other settings hold from now on."""
        self.settings = settings
