"""Orloj: distribution-aware batching for models whose execution time depends on the data (Yu et al.).

policy          Algorithm 1: which batch size, which requests (BEGIN HERE); options: its settings
batch_latency   latency of batches when requests' times are distributions (section 4.2)
priority        the value of running a request now (Equation 2), as a line in exp(b*t)
pending         the waiting requests of a queue and their lines, in arrays
applications    the latency distribution and frequency of each application
"""
