"""Rollout of Tidegate beside Triton's own batcher: shadow mode and canary.

mode        which requests bypass scheduling though they could be scheduled
shadow      all requests bypass; the gain of a policy is simulated
canary      all requests are scheduled for a fraction of the time; both times are compared
comparison  attainment while all is scheduled, and while all bypasses
"""
