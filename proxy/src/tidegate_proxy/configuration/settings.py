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
    """Limits of all queued requests; a policy may drop requests before they are reached."""

    requests: int = 100_000
    """Number of requests that wait for their responses."""
    bytes: int = 8 << 30
    """Total bytes of their messages."""
    reserved_queue_fraction_per_client: float = 0.01
    """Fraction of requests and bytes reserved for each client, even when others fill the queue."""
    reserved_queue_fraction_per_model: float = 0.1
    """Fraction of requests and bytes reserved for each model."""


@dataclass(frozen=True)
class CurrentSettings:
    """Settings of Tidegate, apart from its Tritons' models (catalog) and access control (gate)."""

    queue: QueueLimits = field(default_factory=QueueLimits)
    shed_status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    """Status for clients whose request is rejected. Some clients retry UNAVAILABLE by themselves."""
    max_tries: int = 2
    """Largest number of tries of a request whose Tritons are lost."""
    retry_share: float = 1.0
    """Maximum number of retries because of poison requests, per arriving request."""
    stage_s: float | None = None
    """Time in seconds after which a batch counts as hung, though its Triton answers health probes.

    None: ten times the predicted latency, but at least `STAGE_FLOOR_S`.
    """
    outlier_detection: OutlierDetection = field(default_factory=OutlierDetection)
    """Settings of outlier detection."""
    batch_verification: BatchVerification = field(default_factory=BatchVerification)
    """Comparison of responses in a batch with those of a request alone."""
    health_timeout_s: float = 4.0
    """Time in seconds after which a Triton without any response counts as hung."""
    liveness_timeout_s: float = 4.0
    """Time in seconds after which a part of Tidegate without a sign of life counts as stuck."""
    max_shared_bytes: int = NO_LIMIT
    """Total shared memory with Tritons on this machine, in bytes."""
    max_in_flight_bytes: int = NO_LIMIT
    """Total bytes of requests that are being read or are unanswered."""
    max_response_buffer_bytes: int = NO_LIMIT
    """Total bytes of responses that clients have not read."""
    max_response_buffer_bytes_per_connection: int = NO_LIMIT
    """Bytes of unread responses of one connection, beyond a single response."""
    refuses_shared_memory: bool = False
    """Whether tensors in shared memory are rejected instead of passed to a Triton."""
    shadow: bool = False
    """Whether all requests bypass scheduling, and are only observed."""
    canary: float | None = None
    """Fraction of the time in which requests are scheduled; otherwise they bypass. None: always."""

    def stage_ns(self, upper_ns: int) -> int:
        """Return the time limit of a stage that is predicted to take `upper_ns`."""
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


class SettingsHolder:
    """Holder of the current settings, read once per request."""

    __slots__ = ("settings",)

    def __init__(self, settings: CurrentSettings = CurrentSettings()) -> None:
        self.settings = settings

    def change(self, settings: CurrentSettings) -> None:
        """Replace the settings."""
        self.settings = settings
