"""What becomes of a request, as its client is told: an answer, or why there is none."""

import grpc

from tidegate_proxy.base import refusal

TIMEOUT_EXPIRED = "Request timeout expired"
"""Triton's own words for a request whose time ran out in the queue."""
SHUTTING_DOWN = "Tidegate is shutting down"


class RequestFailed(Exception):
    """What a client gets instead of an answer."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str,
        *,
        queued: bool = True,
        reason: str = "OTHER",
        outcome: str = "",
        refusal: str = "",
    ) -> None:
        """`queued`: False where it was refused on its arrival, which a stream reports in another way.

        `reason`: as what it counts, one of `statistics.FAILURE_REASONS`; `outcome`: the same for traces, in more words.
        `refusal`: why Tidegate refused it, in one word for the client's program; empty where a Triton did.
        """
        super().__init__(details)
        self.code = code
        self.details = details
        self.queued = queued
        self.reason = reason
        self.outcome = outcome or f"failed: {details}"
        self.refusal = refusal


def own_fault(words: str = "Tidegate failed; its log says more") -> RequestFailed:
    """What a client is told when a fault of Tidegate's own is why it gets no answer."""
    return RequestFailed(grpc.StatusCode.INTERNAL, words, refusal=refusal.INTERNAL_ERROR)


Outcome = bytes | RequestFailed
"""A serialized ModelInferResponse, or why there is none."""


def answer_in(outcome: Outcome) -> bytes:
    """The answer that an outcome is. Raises it where it is a failure."""
    if isinstance(outcome, RequestFailed):
        raise outcome
    return outcome
