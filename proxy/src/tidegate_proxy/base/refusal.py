"""Reasons for which Tidegate rejects requests, as machine-readable words; Triton's status and message are unchanged."""

import re
from math import ceil
from typing import Final

REASON_HEADER: Final = "tidegate-reason"
"""Name of the trailing gRPC metadata and of the HTTP header with the reason."""
DEADLINE_UNREACHABLE: Final = "deadline_unreachable"
"""Reason: the deadline cannot be met any more; this is the default of policies."""
DEADLINE_EXPIRED: Final = "deadline_expired"
"""Reason: the deadline had expired on arrival."""
QUEUE_FULL: Final = "queue_full"
"""Reason: the queue is full, by `limits` or by the share of the client or model."""
REASON_UNAVAILABLE: Final = "unavailable"
"""Reason: no worker is left that could run it, or each try met a failing worker."""
SHUTTING_DOWN: Final = "shutting_down"
"""Reason: this Tidegate shuts down; another one may serve the request."""
SCHEDULER_UNAVAILABLE: Final = "scheduler_unavailable"
"""Reason: a frontend has lost its scheduler process, which is being restarted."""
MODEL_LOADING: Final = "model_loading"
"""Reason: its model is being loaded, which takes longer than the deadline allows, or could not be loaded just now."""
BACKEND_UNAVAILABLE: Final = "backend_unavailable"
"""Reason: the Triton to which it was passed does not answer."""
RATE_LIMITED: Final = "rate_limited"
"""Reason: the client's tenant sends more than its rate limit."""
INTERNAL_ERROR: Final = "internal_error"
"""Reason: an internal error, which the log explains."""
MAX_LETTERS: Final = 64

_OTHER: Final = re.compile(r"[^a-z0-9]+")


def with_retry_after(reason: str, retry_after_s: float | None) -> str:
    """Return a reason with the time in seconds after which to try again, which `split` returns; None: without."""
    return reason if retry_after_s is None else f"{reason} {ceil(retry_after_s * 1000)}"


def split(reason: str) -> tuple[str, int | None]:
    """Return the `tidegate-reason`, and the time in ms after which to try again, or None."""
    word, _, wait_ms = reason.partition(" ")
    return word, int(wait_ms) if wait_ms else None


def word_of(reason: str) -> str:
    """Return a policy's drop reason as one word: `queue full` becomes `queue_full`."""
    return _OTHER.sub("_", reason.lower()[:MAX_LETTERS]).strip("_") or "dropped"
