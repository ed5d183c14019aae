"""Outcome of a request for its client: a response, or an error."""

import grpc

from tidegate_proxy.base import refusal

TIMEOUT_EXPIRED = "Request timeout expired"
"""Triton's message for a request whose timeout expired in the queue."""
SHUTTING_DOWN = "Tidegate is shutting down"


class RequestFailed(Exception):
    """Error that a client gets instead of a response."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str,
        *,
        queued: bool = True,
        category: str = "OTHER",
        outcome: str = "",
        reason: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        """Create a failure with the gRPC status and the message for the client.

        `queued`: False for a request rejected on arrival, which a stream reports in another way. `category`: what it
        counts as, one of `model_statistics.FAILURE_REASONS`; `outcome`: the same for traces, in more words. `reason`:
        the `tidegate-reason`, if Tidegate rejected it; empty if a Triton did. `retry_after_s`: time in seconds after
        which another try may succeed; None: unknown.
        """
        super().__init__(details)
        self.code = code
        self.details = details
        self.queued = queued
        self.category = category
        self.outcome = outcome or f"failed: {details}"
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def grpc_reason(self) -> str:
        """The `tidegate-reason` for the end of a gRPC call, with the time after which to try again."""
        return refusal.with_retry_after(self.reason, self.retry_after_s)


def own_fault(words: str = "Tidegate failed; its log says more") -> RequestFailed:
    """Return the error for a request that failed because of an internal error of Tidegate."""
    return RequestFailed(grpc.StatusCode.INTERNAL, words, reason=refusal.INTERNAL_ERROR)


Outcome = bytes | RequestFailed
"""Serialized ModelInferResponse, or the failure."""


def answer_in(outcome: Outcome) -> bytes:
    """Return the response of an outcome, or raise the failure."""
    if isinstance(outcome, RequestFailed):
        raise outcome
    return outcome
