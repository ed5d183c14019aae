"""Expectations of what batches take, and how stages, wake-ups and answers correct them.

expectations    the profiles as they stand
learner         how stages correct them, by a line and a margin that follows how far they stray
shapes          what a new shape starts from
alone           what applications take by themselves; probes: who runs alone so that this is learned
batch_law       what batches share: their fixed cost, and the noise that is no request's own
time_classes    applications that take about as long
lateness        how late wake-ups come, and what is kept free before a deadline for the answer's way back
"""
