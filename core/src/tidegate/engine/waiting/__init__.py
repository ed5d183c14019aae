"""Waiting requests: which of them the policy sees, and when they are dropped.

waiting                 all waiting requests, and when waiting is futile: BEGIN HERE
fair_queue              fair queueing among clients
fair_queue_group        fair queueing in one priority class on one set of workers: requests that the policy sees, costs
flows                   one queue a client, and the throttled requests
priority_classes        the priority classes of one set of workers, and which of them the policy sees
late_requests           requests that will miss their deadline and are served anyway: first come, first served
"""

from tidegate.engine.waiting.waiting import (
    DEADLINE_UNREACHABLE,
    FAIR_SHARE,
    LOWER_PRIORITY,
    Notification,
    WaitingRequests,
)

__all__ = ["DEADLINE_UNREACHABLE", "FAIR_SHARE", "LOWER_PRIORITY", "Notification", "WaitingRequests"]
