"""Drives the engine under the monotonic clock, and carries out its effects.

driver           admits requests and hands on the engine's effects
clock            wakes the engine when a timer is due
in_flight        waiting clients, within the limits of the queue, and running stages
stages           batches in flight through Tritons; paces those that one Triton would merge
payload          the tensors of a batch, in messages or in shared memory
failures         what happens to the requests of a failed batch, and which request was at fault
membership       which Tritons take part: joins, losses, outlier ejection
"""
