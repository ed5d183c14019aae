"""InSS: places models on MPS shares of GPUs, with a model of their interference (Han et al., TPDS 2024).

problem              GPUs, models, rates, SLOs and the interference file; also made from a demand
prediction           latency of models alone, on all shares and at all batch sizes, and beside the others of the GPU;
                     the rate that a share serves within the SLO; the shares that planners assign
plan                 the document, and how it is made of shares; layout: the layout of a plan, the shares of a layout
gpu_partition        divides one GPU into shares; search: decides which model is on which GPU
gpulet               the baseline gpulet; gslice: GSLICE's feedback loop; igniter: iGniter's closed form
planners             all of these as planners; planner_registry: the planners by name
controllers          controllers that change shares with the load; replanning: by a planner
learned              InSS's networks: how they decide; trained in `training` by `tidegate train-inss` (`commands`)
"""
