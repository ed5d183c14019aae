"""Estimates of latency: profiles, corrected by the stages that were observed.

expectations        the current profiles
learner             corrects a profile by a straight line and a margin that follows the observed error
shapes              groups shapes, and applications whose requests take about as long; first profile of a new shape
standalone_latency  the latency distribution of each application's requests, and which run alone to measure it
feature_law         latency over a feature of the requests, such as tokens: levels in place of application names
batch_law           the fixed cost of batches, and the noise that all requests of a batch share
"""
