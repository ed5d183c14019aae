"""Drives the engine under the monotonic clock, and carries out what it decides.

driver           takes requests and hands the engine's effects on
clock            wakes the engine in time
in_flight        the books: clients that wait, within the limits of the queue, and stages that run
stages             batches on their way through Tritons; those that a Triton would merge, one after the other
payload          the tensors of a batch, in calls or in shared memory
failures         what becomes of the requests of a batch that failed, and which request was at fault
membership       Tritons that come and go, and those that are ejected for a while
"""
