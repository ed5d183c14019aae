"""PPipe: pooled pipelines over GPUs of several classes.

problem          the input: classes of GPUs, models with their block profiles, the objective; also made from a demand
columns          every pipeline that meets the SLO and is not dominated by another one
column_search    the number of GPUs of each column: the dual bounds the rate and chooses columns, `rounding` finds a
                 start, `program` is the integer program
division         the same by dynamic programming, for few classes of GPUs (`knapsack`)
plan             the document, made by `planners`; layout: the layout of a plan
planners         ppipe, and its baselines np (whole models) and dart-r (pairs of GPUs); infeasibility: why there is no
                 plan
replanning       a controller that plans again when rates drift
published_plans  the paper's problems and plans, from a folder with the artifact's data
policy           the data plane, event by event; `reactive` is its baseline
  queues         requests that wait at the first pools; sizing: a model's pipelines and the rate that they serve;
                 the pipeline and the rows of the next batch
  corrections    corrects batches in flight that are early, late or lost their worker
  routes         the workers that a batch visits
  resources      the route that ends first; reservations: when workers and links are reserved
"""
