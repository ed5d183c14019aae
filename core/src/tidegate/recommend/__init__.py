"""What to run: every policy and planner that applies, tried on recorded or described traffic, and what follows from it.

question       what is asked: traffic, hardware, the goal
recording      traffic out of an event log, cut into windows
observed       how long batches took in it
hardware       GPUs in words; a scenario on so many of them
candidates     what can be run: a policy with options, on whole GPUs or on a planner's layout; what cannot, and why
planned        a planner's layout as a scenario
triton_tuning  the settings of Triton's own batcher that are tried, as the baseline; by_model: each model's own
trial          one simulated run, and what it tells
trials         many of them, on all cores, none of them twice
race           the best of many by few runs: successive halving on common random numbers
held_out       what was chosen, on seeds that did not choose it: means with their intervals
least          the least hardware that keeps the goal, by bisection
change         what would change the answer
assess         all of this for one choice of hardware; offers: for what could be bought; recommendation: the answer
verdicts       the answer in words; document: as JSON; page: as HTML; files: to be applied
"""
