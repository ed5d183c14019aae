"""Symphony: deferred batch scheduling (Chen et al.), split as in its Appendix D.

policy         glue: events to the two threads below, their decisions to commands
model_thread   what concerns one queue only: the candidate, and when it may start
rank_thread    what concerns all: which candidate meets which worker, and when
"""
