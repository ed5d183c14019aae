"""`tidegate recommend`: tries every applicable policy and planner on recorded or described traffic and recommends one.

query               the input: traffic, hardware, the goal
recording           traffic from an event log, cut into windows; observed_latency: how long batches took in it
hardware            GPUs as text (`2xA100`); a scenario on that many of them
candidates          what can be run: a policy with options, on whole GPUs or on a planner's layout; what cannot, and why
planner_layout      a planner's layout as a scenario
triton_tuning       settings of Triton's own batcher that are tried as the baseline
simulation_runs     simulated runs and their figures: many, on all cores, none of them twice
successive_halving  finds the best of many candidates with few runs, on common random numbers
held_out            runs the chosen candidate on seeds that did not choose it: means with confidence intervals
assess              all of this for one choice of hardware, and the least hardware that meets the goal
recommendation      the same for each purchase; the answer
verdicts            the answer in sentences; document: as JSON; page: as HTML; files: as files to apply
"""
