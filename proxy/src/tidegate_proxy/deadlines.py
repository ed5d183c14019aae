"""When a request is due.

The model's SLO counts from the arrival; the parameter `slo_ms` replaces it for one request. The parameter `timeout`
(microseconds, as Triton defines it) and the client's gRPC deadline can only bring the instant forward: they say how
long somebody waits, not how long a request may be held back (docs/decisions/0004-deadlines.md).
"""

from typing import Final, NamedTuple

from tritonclient.grpc import service_pb2

from tidegate.api import NEVER, ms_to_ns

_ENDLESS: Final = 1e15
"""A number of milli- or microseconds from which on it limits nothing."""


class Times(NamedTuple):
    """What a request says about when it wants its answer."""

    slo_ns: int | None
    timeout_ns: int | None


def times_in(header: service_pb2.ModelInferRequest) -> Times:
    """The parameters `slo_ms` and `timeout`; None for one that is not there or limits nothing."""
    parameters = header.parameters
    slo_ms = _number(parameters["slo_ms"]) if "slo_ms" in parameters else None
    timeout_us = (_number(parameters["timeout"]) or 0) if "timeout" in parameters else 0
    return Times(
        None if slo_ms is None else ms_to_ns(slo_ms),
        round(timeout_us * 1_000) if timeout_us > 0 else None,
    )


def deadline_ns(now_ns: int, slo_ns: int | None, times: Times, grpc_remaining_s: float | None) -> int:
    """The instant by which a request that arrives now must be answered; NEVER when nothing limits it.

    `slo_ns` is its model's.
    """
    if times.slo_ns is not None:
        slo_ns = times.slo_ns
    due_ns = NEVER if slo_ns is None else min(NEVER, now_ns + slo_ns)
    if times.timeout_ns is not None:
        due_ns = min(due_ns, now_ns + times.timeout_ns)
    if grpc_remaining_s is not None and grpc_remaining_s < 1e9:  # more than that is grpc's way to say "none"
        due_ns = min(due_ns, now_ns + round(grpc_remaining_s * 1e9))
    return due_ns


def _number(parameter: service_pb2.InferParameter) -> float | None:
    """The value of a parameter of any numeric sort, also one given as text; None for what is none, or endless."""
    kind = parameter.WhichOneof("parameter_choice")
    value = getattr(parameter, kind) if kind else None
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < _ENDLESS else None
