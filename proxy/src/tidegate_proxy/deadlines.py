"""When a request is due, and until when its answer is wanted though it is late.

The model's SLO counts from the arrival; the parameter `slo_ms` replaces it for one request. The parameter `timeout`
(microseconds, as Triton defines it) and the client's gRPC deadline can only bring the instant forward: they say how
long somebody waits, not how long a request may be held back (docs/decisions/0004-deadlines.md). Where the model serves
what is late, only those two end the wait (docs/decisions/0046-late-or-never.md).
"""

from typing import Final, NamedTuple

from tritonclient.grpc import service_pb2

from tidegate.api import NEVER, Model, ms_to_ns

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


class Due(NamedTuple):
    """When the answer to a request is wanted."""

    deadline_ns: int
    """The instant by which it must be answered, not before it arrives; NEVER when nothing limits it."""
    late_until_ns: int
    """The instant up to which an answer is wanted that is late; 0: it is not."""


def due(
    now_ns: int, model: Model | None, times: Times, grpc_remaining_s: float | None, *, heeds_timeout: bool = False
) -> Due:
    """When the answer to a request is wanted that arrives now. `model`: None where there is none any more.

    `heeds_timeout`: its Triton heeds the parameter `timeout`. Where that ignores it, an SLO of the model or the request
    has Tidegate heed it.
    """
    slo_ns = times.slo_ns if times.slo_ns is not None or model is None else model.slo_ns
    limit_ns = NEVER
    if times.timeout_ns is not None and (heeds_timeout or slo_ns is not None):
        limit_ns = now_ns + times.timeout_ns
    limit_ns = min(limit_ns, end_of_call_ns(now_ns, grpc_remaining_s))
    if slo_ns is None:
        return Due(limit_ns, 0)
    deadline_ns = min(limit_ns, now_ns + max(0, slo_ns))
    served_late = model is not None and model.late == "serve" and deadline_ns < limit_ns
    return Due(deadline_ns, limit_ns if served_late else 0)


def end_of_call_ns(now_ns: int, grpc_remaining_s: float | None) -> int:
    """The instant at which a client's call ends by its own deadline; NEVER when it has none."""
    if grpc_remaining_s is None or grpc_remaining_s >= 1e9:  # so much is grpc's way to say "none"
        return NEVER
    return now_ns + round(grpc_remaining_s * 1e9)


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
