"""Estimates of latency: profiles, corrected by the stages, timers and responses that were observed.

expectations        the current profiles
learner             corrects a profile by a straight line and a margin that follows the observed error
shapes              groups shapes into classes, and gives a new shape a first profile
standalone_latency  the latency distribution of each application's requests; probes: which requests run alone to measure
                    it
batch_law           the fixed cost of batches, and the noise that all requests of a batch share
time_classes        groups applications whose requests take about as long
timer_latency       how late timers fire, and the margin before a deadline for the response to travel back
"""
