"""Symphony: deferred batch scheduling (Chen et al.), split as in its Appendix D.

policy         glue: events to the two threads below, their decisions to commands
model_thread   what concerns one queue only: gathering, the candidate, what to drop
rank_thread    what concerns all: which candidate meets which worker, and when
"""
