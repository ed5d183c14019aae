"""Execution of the engine on the monotonic clock, and of its effects.

driver           admits requests and executes the engine's effects
clock            wakes the engine when a timer is due
in_flight        waiting clients, within the limits of the queue; running stages, and the tensors of their batches
stages           batches in flight through Tritons; paces those that one Triton would merge
slots            requests that occupy a worker from their dispatch to their last response
failures         retries after a failed batch, and detection of poison requests
membership       Tritons that take part: joins, losses, outlier ejection
"""
