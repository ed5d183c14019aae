"""PARIS and ELSA: layouts of MIG slices for the sizes of requests, and a policy that fills them (Kim et al., DAC 2022).

The planners, in the order in which a plan is made:
problem   GPUs, models, sizes of requests; slices: which kinds the GPUs offer, and how fast a model is there
proposal  such a problem, made of a demand
knees     from how many rows on a slice is busy; counts: how many slices of each size PARIS wants, in parts of slices
budget    how GPUs can be cut, and how many GPCs that spends
program   whole slices on whole GPUs; planners: paris and its baselines
bearing   what any layout's slices bear
placing   every slice at its start slot; plan: the document; layout: the same for simulator, generator and proxy

From one layout to another:
change_problem  what serves, what is to serve; change_plan: the steps
instances       what serves on a GPU; matching: which planned GPU is which; rearranging: other cuts into as many slices
steps           what stays of a GPU, and how the rest is changed; ordering: in which order, and what at once
reconfigure     the planner

The policy:
policy      ELSA; slice_sizes: which slices are smaller than others
line        what one worker runs, and what waits for it
pool        equal workers, and which of them has the least to do; tournament: how that is found quickly
"""
