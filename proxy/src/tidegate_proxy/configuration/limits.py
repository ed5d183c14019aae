"""Limits that protect the service from overload: the section `limits` of the configuration."""

from typing import Final

from pydantic import ByteSize, Field

from tidegate_proxy.configuration.section import ConfigSection, Seconds

INT32_MAX: Final = 2**31 - 1


class LimitsConfig(ConfigSection):
    """Limits on connections, bytes, queues and timeouts."""

    max_queue_size: int = Field(default=100_000, ge=1, description="Requests queued in all; those above are shed")
    max_queue_bytes: ByteSize = Field(
        default=ByteSize(4 << 30), ge=1, description="Their bytes in all, as a number or with a unit (`512MiB`)"
    )
    reserved_queue_fraction_per_client: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Of both: a client with less than that is not refused because others fill the queue, up to a tenth "
        "more in all",
    )
    reserved_queue_fraction_per_model: float = Field(default=0.1, ge=0, le=1, description="The same for a model")
    no_slo_max_deferral_s: Seconds = Field(
        default=1.0,
        description="So long requests without an SLO or a time limit give way to those that have one; then it is their "
        "turn, too",
    )
    max_message_bytes: ByteSize = Field(
        default=ByteSize(INT32_MAX),
        ge=1,
        le=INT32_MAX,
        description="Of one request, as it comes and inflated; the default is Triton's",
    )
    max_bytes_in_flight: ByteSize = Field(
        default=ByteSize(8 << 30),
        ge=1,
        description="Of requests that are read or not answered yet, in all; a client has at most what it leaves free",
    )
    max_response_buffer_bytes: ByteSize = Field(
        default=ByteSize(4 << 30), ge=1, description="Of answers that their clients have not taken, in all"
    )
    max_response_buffer_bytes_per_connection: ByteSize = Field(
        default=ByteSize(1 << 30), ge=1, description="The same of one gRPC connection, where it is more than one answer"
    )
    max_connections: int = Field(
        default=10_000, ge=1, description="Over HTTP, and as many over gRPC; who has most makes room"
    )
    max_concurrent_streams: int = Field(
        default=10_000, ge=1, le=INT32_MAX, description="Calls at a time on a gRPC connection"
    )
    max_shared_bytes: ByteSize = Field(
        default=ByteSize(1 << 30), ge=0, description="Shared memory with Tritons on this machine, in all; 0: none"
    )
    execution_timeout_s: Seconds | None = Field(
        default=None,
        description="A batch that runs longer is given up; default: ten times as long as planned, and 30 s or more",
    )
    health_timeout_s: Seconds = Field(
        default=4.0, description="A Triton that answers neither inferences nor health probes for so long is given up"
    )
    liveness_timeout_s: float = Field(
        default=4.0,
        ge=1,
        le=1e6,
        description="So long may a part give no sign of life; then it is not live. Who holds all up so long is logged",
    )
    keepalive_s: float = Field(
        default=7200.0,
        ge=10,
        le=1e6,
        description="A connection that is silent for so long is pinged; default: Triton's",
    )
    min_ping_interval_s: float = Field(
        default=300.0,
        ge=0,
        le=1e6,
        description="A gRPC client without calls that pings more often is cut off; default: Triton's",
    )
    request_headers_timeout_s: Seconds = Field(
        default=60.0, description="From a request's first byte to the end of its headers; a handshake of TLS or gRPC"
    )
    request_timeout_s: Seconds = Field(default=600.0, description="From there until the request is whole")
    write_timeout_s: Seconds = Field(
        default=600.0, description="How long a client may leave an answer that waits for it (HTTP: take nothing of it)"
    )
    idle_timeout_s: Seconds = Field(
        default=3600.0, description="A connection without a request for so long is closed, gently over gRPC"
    )
    max_connection_age_s: Seconds | None = Field(
        default=None,
        description="A connection so old ends when it is answered, and its client makes another one; default: none",
    )
