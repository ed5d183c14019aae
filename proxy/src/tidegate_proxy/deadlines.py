"""When a request is due.

The model's SLO counts from the arrival; the parameter `slo_ms` replaces it for one request. The parameter `timeout`
(microseconds, as Triton defines it) and the client's gRPC deadline can only bring the instant forward: they say how
long somebody waits, not how long a request may be held back (docs/decisions/0004-deadlines.md).
"""

from tritonclient.grpc import service_pb2

from tidegate.api import NEVER, ms_to_ns


def deadline_ns(
    now_ns: int, slo_ns: int | None, header: service_pb2.ModelInferRequest, grpc_remaining_s: float | None
) -> int:
    """The instant by which a request that arrives now must be answered; NEVER when nothing limits it.

    `slo_ns` is its model's.
    """
    parameters = header.parameters
    if "slo_ms" in parameters and (slo_ms := _number(parameters["slo_ms"])) is not None:
        slo_ns = ms_to_ns(slo_ms)
    due_ns = NEVER if slo_ns is None else min(NEVER, now_ns + slo_ns)
    if "timeout" in parameters and (timeout_us := _number(parameters["timeout"]) or 0) > 0:
        due_ns = min(due_ns, now_ns + round(timeout_us * 1_000))
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
    return number if abs(number) < 1e15 else None
