"""PPipe: pooled pipelines over unlike GPUs.

problem      what is given: classes of GPUs, models with their block profiles, the objective
columns      every pipeline that meets the SLO and is not worse than another one
counts       how many GPUs each pipeline gets: an integer program
plan         what comes out; `layout` makes of it what the generator, the simulator and the proxy read
planners     ppipe, and its baselines np (whole models) and dart-r (pairs of GPUs)
published    the paper's problems and plans, from a folder with the artifact's data
policy       the data plane: reservations in time, batches of the right size; `reactive` is its baseline
"""
