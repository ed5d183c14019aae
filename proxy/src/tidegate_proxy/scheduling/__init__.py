"""Drives the engine under the monotonic clock, and carries out what it decides.

driver           takes requests and hands the engine's effects on
clock            wakes the engine in time
waiting_clients  who waits for what, within the limits of the queue
legs             batches on their way through Tritons
running_legs     those that run now: one of them, and the book of all
payload          the tensors of a batch, in calls or in shared memory
dispatch_pacing  batches that a Triton would merge, one after the other
failures         what becomes of the requests of a batch that failed, and which request was at fault
membership       Tritons that come and go, and those that are ejected for a while
"""
