"""How models slow each other down on one GPU, learned from runs: what `tidegate profile-shares` measures and
`tidegate fit-interference` makes of it.

measure           runs models on shares of a GPU, alone and beside each other
runs              measured runs, alone and beside each other, as files have them
locally_weighted  what a model takes alone on any share, from a few runs
fit               from runs to the model of InSS: `tidegate.schemas.InterferenceModel`
                  missing_utilization: what models use whose use of cache and DRAM nobody measured
held_out          how good it is on runs that it was not fitted to, beside controls
"""
