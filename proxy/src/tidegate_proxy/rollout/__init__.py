"""Rollout of Tidegate beside Triton's own batcher (shadow mode, canary), and of new versions of models.

mode                which requests bypass scheduling though they could be scheduled
shadow              all requests bypass; the gain of a policy is simulated
canary              all requests are scheduled for a fraction of the time; both times are compared
comparison          attainment of two groups of requests, with intervals
client_outcomes     outcomes of requests by client, where versions are drawn by client
verdict_file        verdicts on new versions, kept over restarts
versions            a new version gets copies of requests, then a fraction of them; promoted or undone
version_comparison  outcomes and responses of two versions of a model
"""
