"""gRPC's own names for what connections are held to."""

from typing import Any, Final

from tidegate_proxy.configuration.limits import INT32_MAX, LimitsConfig

Options = tuple[tuple[str, Any], ...]
"""Each name once: of two of one name gRPC's core takes the first, without a word."""
UNBOUND: Final[Options] = (
    # Triton's own limit is INT32_MAX; grpc's default of 4 MiB would refuse what Triton takes.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
CHANNEL_OPTIONS: Final[Options] = (
    *UNBOUND,
    # A Triton that restarts is to be found again at once, not after grpc's back-off of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def server_options(limits: LimitsConfig, *, reuse_port: bool) -> Options:
    """The options of a server."""
    options: dict[str, float] = {
        "grpc.max_send_message_length": -1,
        "grpc.max_receive_message_length": int(limits.max_message_bytes),
        "grpc.max_concurrent_streams": limits.max_streams,
        "grpc.max_allowed_incoming_connections": limits.max_connections,
        "grpc.keepalive_time_ms": limits.keepalive_s * 1000,
        "grpc.http2.min_ping_interval_without_data_ms": limits.min_ping_interval_s * 1000,
        "grpc.server_handshake_timeout_ms": limits.head_timeout_s * 1000,
        "grpc.http2.settings_timeout": limits.head_timeout_s * 1000,
        "grpc.max_connection_idle_ms": limits.idle_timeout_s * 1000,
        "grpc.so_reuseport": int(reuse_port),
    }
    if limits.max_connection_age_s is not None:
        options["grpc.max_connection_age_ms"] = limits.max_connection_age_s * 1000
    return tuple((name, round(min(value, INT32_MAX))) for name, value in options.items())
