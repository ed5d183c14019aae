"""InSS: places models on MPS shares of GPUs, with a model of their interference (Han et al., TPDS 2024).

problem              GPUs, models, rates, SLOs and the interference file; problem_from_demand: made from a demand
assignment           the planners' decisions: which model has which share of which GPU, and its batch size
tables               latency of every model alone, on all shares and at all batch sizes
prediction           latency of batches beside the other models of the GPU
capacity             the rate that a share serves within the SLO
plan                 the document, made by `build_plan`; layout: the layout of a plan
gpu_partition        divides one GPU into shares; search: decides which model is on which GPU
gpulet               the baseline gpulet; gslice: GSLICE's feedback loop; igniter: iGniter's closed form
planners             all of these as planners; planner_registry: the planners by name
controllers          controllers that change shares with the load; replanning: by a planner; current_state: what is
                     deployed
learned              InSS's networks: how they decide; trained in `training` by `tidegate train-inss` (`commands`)
"""
