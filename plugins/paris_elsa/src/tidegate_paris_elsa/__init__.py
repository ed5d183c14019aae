"""PARIS and ELSA: MIG layouts for the batch sizes of requests, and a policy for them (Kim et al., DAC 2022).

The planners, in the order in which a plan is made:
problem   GPUs, models, sizes of requests; also made from a demand
slices    the profiles of the GPUs, the latency of each model there, the batch size at which a slice is saturated,
          its knee, and the number of slices of each size that PARIS wants (fractional)
budget    the possible MIG partitions of a GPU, and the GPCs that they use
program   the integer program: whole slices on whole GPUs; planners: paris and its baselines, every slice at its
          start slot
portfolio the best of several plans, by what slices sustain under ELSA
plan      the document; layout: the layout of a plan

From one layout to another:
change_plan     the current and the target layout, and the steps
instances       the MIG instances of a GPU; repartitioning: which GPU becomes which planned one, also in other
                partitions with as many slices
steps           which instances of a GPU stay, and how the others change, in which order and parallelism
reconfigure     the planner, and the rate that a layout's slices serve
replanning      the controller that plans again when sizes have drifted, and changes the slices wave by wave

The policy:
policy       ELSA
worker_queue the batch that a worker runs, and those that wait for it; equal workers, and which has the least work
"""
