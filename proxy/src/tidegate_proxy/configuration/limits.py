"""Limits that protect the service from overload: the section `limits` of the configuration."""

from typing import Final

from pydantic import ByteSize, Field

from tidegate_proxy.configuration.section import ConfigSection, Seconds

INT32_MAX: Final = 2**31 - 1


class LimitsConfig(ConfigSection):
    """Limits on connections, bytes, queues and timeouts."""

    max_queue_size: int = Field(
        default=100_000, ge=1, description="Largest number of queued requests in all; further ones are rejected"
    )
    max_queue_bytes: ByteSize = Field(
        default=ByteSize(4 << 30),
        ge=1,
        description="Total bytes of queued requests, as a number or with a unit (`512MiB`)",
    )
    reserved_queue_fraction_per_client: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Fraction of both limits reserved for each client, even when others fill the queue, up to a "
        "tenth more in all",
    )
    reserved_queue_fraction_per_model: float = Field(
        default=0.1, ge=0, le=1, description="Fraction of both limits reserved for each model"
    )
    no_slo_max_deferral_s: Seconds = Field(
        default=1.0,
        description="Time for which requests without an SLO or a timeout yield to those that have one",
    )
    max_message_bytes: ByteSize = Field(
        default=ByteSize(INT32_MAX),
        ge=1,
        le=INT32_MAX,
        description="Largest message, before and after decompression; the default is Triton's",
    )
    max_bytes_in_flight: ByteSize = Field(
        default=ByteSize(8 << 30),
        ge=1,
        description="Total bytes of requests that are being read or are unanswered; a client may hold at most as "
        "much as is left free",
    )
    max_response_buffer_bytes: ByteSize = Field(
        default=ByteSize(4 << 30), ge=1, description="Total bytes of responses that clients have not read"
    )
    max_response_buffer_bytes_per_connection: ByteSize = Field(
        default=ByteSize(1 << 30),
        ge=1,
        description="Bytes of unread responses of one gRPC connection, beyond a single response",
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="Largest number of connections over HTTP, and over gRPC; the client with the most makes room "
        "for a new one",
    )
    max_concurrent_streams: int = Field(
        default=10_000, ge=1, le=INT32_MAX, description="Concurrent calls on a gRPC connection"
    )
    max_shared_bytes: ByteSize = Field(
        default=ByteSize(1 << 30), ge=0, description="Total shared memory with Tritons on this machine; 0: none"
    )
    execution_timeout_s: Seconds | None = Field(
        default=None,
        description="Time after which a running batch is given up; default: ten times its predicted latency, but "
        "at least 30 s",
    )
    health_timeout_s: Seconds = Field(
        default=4.0,
        description="Time after which a Triton that answers neither inferences nor health probes is given up",
    )
    liveness_timeout_s: float = Field(
        default=4.0,
        ge=1,
        le=1e6,
        description="Time after which a part without a sign of life is not live; what blocks the event loop that "
        "long is logged",
    )
    keepalive_s: float = Field(
        default=7200.0,
        ge=10,
        le=1e6,
        description="Silence after which a connection is pinged; default: Triton's",
    )
    min_ping_interval_s: float = Field(
        default=300.0,
        ge=0,
        le=1e6,
        description="Shortest interval between pings of a gRPC client without calls; default: Triton's",
    )
    request_headers_timeout_s: Seconds = Field(
        default=60.0,
        description="Time from a request's first byte to the end of its headers; also for TLS and gRPC handshakes",
    )
    request_timeout_s: Seconds = Field(default=600.0, description="Time from there until the request is complete")
    write_timeout_s: Seconds = Field(
        default=600.0, description="Time for which a client may leave a response unread (HTTP: read nothing of it)"
    )
    idle_timeout_s: Seconds = Field(
        default=3600.0, description="Time after which a connection without requests is closed, gracefully over gRPC"
    )
    max_connection_age_s: Seconds | None = Field(
        default=None,
        description="Age after which a connection is closed once it is answered, and its client reconnects; "
        "default: none",
    )
