"""PARIS and ELSA: layouts of MIG slices for the batch sizes of requests, and a policy for them (Kim et al., DAC 2022).

The planners, in the order in which a plan is made:
problem   GPUs, models, sizes of requests; slices: the profiles of the GPUs, and how fast a model is on each
problem_from_demand  such a problem, made of a demand
knees     the batch size at which a slice is saturated
slice_demand  the number of slices of each size that PARIS wants (fractional)
budget    the possible MIG partitions of a GPU, and the GPCs that they use
program   the integer program: whole slices on whole GPUs; planners: paris and its baselines
capacity  the rate that a layout's slices serve
placement every slice at its start slot; plan: the document; layout: what simulator, generator and proxy read

From one layout to another:
change_problem  what is deployed, what shall be; change_plan: the steps
instances       the MIG instances of a GPU; matching: which GPU becomes which planned one; repartitioning: other
                partitions with as many slices
steps           which instances of a GPU stay, and how the others change; ordering: in which order, and which at once
reconfigure     the planner

The policy:
policy       ELSA; slice_sizes: which slices are smaller than others
worker_queue the batch that a worker runs, and those that wait for it
pool         equal workers, and which has the least work; tournament: finds that in logarithmic time
"""
