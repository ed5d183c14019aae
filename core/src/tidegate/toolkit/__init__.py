"""What most policies are built from: queues, idle workers, gathering, batch targets. A policy may do without all of it.

queueing      a queue per kind of batch: the base of most policies (BEGIN HERE)
idle_workers  which workers are idle, or about to be
gathering     which requests of a queue would run together if a batch started now
batch_target  how large a batch the load asks for
first_come    first come, first served: the simplest policy of all
"""

from tidegate.toolkit.batch_target import ArrivalRate, BatchTarget, staggered_target
from tidegate.toolkit.first_come import FirstComeFirstServed
from tidegate.toolkit.gathering import Gathered, Gathering
from tidegate.toolkit.idle_workers import IdleWorkers
from tidegate.toolkit.queueing import QueueingPolicy, RequestQueue

__all__ = [
    "ArrivalRate",
    "BatchTarget",
    "FirstComeFirstServed",
    "Gathered",
    "Gathering",
    "IdleWorkers",
    "QueueingPolicy",
    "RequestQueue",
    "staggered_target",
]
