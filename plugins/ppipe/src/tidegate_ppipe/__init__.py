"""PPipe: pooled pipelines over unlike GPUs.

problem      what is given: classes of GPUs, models with their block profiles, the objective; proposal: made of a demand
columns      every pipeline that meets the SLO and that no other one replaces
prices       what parts of GPUs would bear: a bound, and which columns are worth an integer program
counts       how many GPUs each column gets: `rounding` starts, `program` is the integer program
division     the same by tables, for few classes of GPUs: what each model makes of its share (`knapsack`)
plan         what comes out, made by `plan_of`; `layout` makes of it what generator, simulator and proxy read
planners     ppipe, and its baselines np (whole models) and dart-r (pairs of GPUs); `reasons` why there is no plan
replanning   a controller that plans anew when rates drift
published    the paper's problems and plans, from a folder with the artifact's data
policy       the data plane, event by event; `reactive` is its baseline
  waiting      what waits at the first pools; sizing: through which pipeline the next batch goes, and its rows
  corrections  batches on their way, where something is not as planned
  routes       a model's pipelines and the load that they bear; paths: the way of a batch
  resources    which path is done first; places, reservations: when workers and links are taken
"""
