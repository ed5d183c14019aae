"""Building blocks of policies: queues, idle workers, batch formation, batch targets. Using them is optional.

queueing      one queue for each queue key, and the workers that are idle, or about to be: the base of most policies
              (BEGIN HERE)
gathering     batch formation: the requests of a queue that would run together if a batch started now
batch_target  the batch size that the load needs
first_come    first come, first served: the simplest policy
stage_graph   graphs of stages with one deadline (ensembles): the deadline of each stage
"""

from tidegate.toolkit.batch_target import ArrivalRate, BatchTarget, staggered_target
from tidegate.toolkit.first_come import FirstComeFirstServed
from tidegate.toolkit.gathering import FormedBatch, Gathering
from tidegate.toolkit.queueing import IdleWorkers, QueueingPolicy, RequestQueue

__all__ = [
    "ArrivalRate",
    "BatchTarget",
    "FirstComeFirstServed",
    "FormedBatch",
    "Gathering",
    "IdleWorkers",
    "QueueingPolicy",
    "RequestQueue",
    "staggered_target",
]
