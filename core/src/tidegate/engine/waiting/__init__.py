"""The requests that wait: which of them the policy sees, and when they are given up.

waiting         all of them, and what is told of them: BEGIN HERE
sharing         whose turn it is; shared_workers: on one set of workers, and what the policy sees of them;
                flows: whose requests wait there, and what is held; batch_costs: what batches will take
hurried         who may wait behind others that have more time, and when that is in vain
late            what cannot be in time any more and is served all the same: first come, first served
"""

from tidegate.engine.waiting.waiting import IN_VAIN, OUT_OF_TURN, News, Waiting

__all__ = ["IN_VAIN", "OUT_OF_TURN", "News", "Waiting"]
