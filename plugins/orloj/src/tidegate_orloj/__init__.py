"""Orloj: distribution-aware batching for models whose execution time depends on the data (Yu et al.).

policy          Algorithm 1: which batch size, which requests (BEGIN HERE); options: what can be set
batch_latency   how long batches take whose requests' times are distributions (section 4.2)
priority        what it is worth to run a request now (Equation 2), as a line in exp(b*t)
pending         the waiting requests of a queue and their lines, in arrays
applications    which distribution a request's time is drawn from, and how often each comes
"""
