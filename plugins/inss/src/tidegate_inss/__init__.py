"""InSS: models on MPS shares of GPUs, by a model of how they slow each other down (Han et al., TPDS 2024).

problem      GPUs, models, rates, SLOs, and the interference file; proposal: made of a demand
assignment   what planners decide: which model has how much of which GPU, in batches of which size
tables       what every model takes alone, on all shares and in all batches
prediction   what batches take beside their neighbours
bearing      how much load a share bears before too many are late
plan         the document, made by `plan_of`; `layout` makes of it what generator, simulator and proxy read
division     how one GPU is divided; search: who is on which GPU
gpulet       its parts; gslice: its loop; igniter: its closed form: the baselines
planners     all of these as planners
controllers  shares that follow the load; replanning: how; present: what serves, as planners see it
by_name      the planners by their names
learned      InSS's networks: how they decide; made in `training` by `tidegate train-inss` (`commands`)
"""
