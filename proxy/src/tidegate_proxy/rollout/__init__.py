"""Tidegate beside Triton's own batcher, before it decides over everything.

mode        what passes at present though it could be scheduled
shadow      all passes; what a policy would have gained is simulated
canary      all is scheduled for a share of the time; both are compared
comparison  what is in time while all is scheduled, and while all passes
"""
