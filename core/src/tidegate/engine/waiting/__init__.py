"""Waiting requests: which of them the policy sees, and when they are dropped.

waiting                 all waiting requests: BEGIN HERE
fair_queue              fair queueing among clients; fair_queue_group: of one priority class on one set of workers, with
                        the requests that the policy sees; flows: one queue a client, and the throttled requests;
                        batch_costs: their cost
priority_classes        the priority classes of one set of workers, and which of them the policy sees
out_of_order_deadlines  requests with less time than those ahead of them, and when waiting is futile
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
