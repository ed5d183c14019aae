"""Why Tidegate refused a request, in one word that programs can read: Triton's status and words stay as they are."""

import re
from typing import Final

REASON_HEADER: Final = "tidegate-reason"
"""The trailing metadata of gRPC, the header of HTTP and the parameter of a stream's answer that have the word."""
DEADLINE_UNREACHABLE: Final = "deadline_unreachable"
"""It could not be answered on time any more: what policies say as a rule."""
DEADLINE_EXPIRED: Final = "deadline_expired"
"""Its time had run out when it came."""
QUEUE_FULL: Final = "queue_full"
"""Reason: the queue is full, by `limits` or by the share of the client or model."""
REASON_UNAVAILABLE: Final = "unavailable"
"""No worker is left that it could run on, or each of its tries met a worker that failed."""
SHUTTING_DOWN: Final = "shutting_down"
"""This Tidegate ends: another one may take it."""
SCHEDULER_UNAVAILABLE: Final = "scheduler_unavailable"
"""A frontend has lost the process that schedules: it is being started again."""
BACKEND_UNAVAILABLE: Final = "backend_unavailable"
"""The Triton that it was to be passed on to does not answer."""
INTERNAL_ERROR: Final = "internal_error"
"""A fault of Tidegate's own, of which its log says more."""
MAX_LETTERS: Final = 64

_OTHER: Final = re.compile(r"[^a-z0-9]+")


def word_of(reason: str) -> str:
    """Return a policy's drop reason as one word: `queue full` becomes `queue_full`."""
    return _OTHER.sub("_", reason.lower()[:MAX_LETTERS]).strip("_") or "dropped"
