"""PARIS and ELSA: layouts of MIG slices for the sizes of requests, and a policy that fills them (Kim et al., DAC 2022).

The planners, in the order in which a plan is made:
problem   GPUs, models, sizes of requests; slices: which kinds the GPUs offer, and how fast a model is there
knees     from how many rows on a slice is busy; counts: how many slices of each size PARIS wants, in parts of slices
budget    how GPUs can be cut, and how many GPCs that spends
program   whole slices on whole GPUs; planners: paris and its baselines
placing   every slice at its start slot; plan: the document; layout: the same for simulator, generator and proxy
"""
