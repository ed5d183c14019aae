"""Interference of models on one GPU, learned from the runs that `tidegate profile-shares` measures.

Used by `tidegate fit-interference`.

measure           runs models on shares of a GPU, alone and together
runs              measured runs, alone and together, in CSV files
fit               from runs to the model of InSS: `tidegate.schemas.InterferenceModel`, with the latency of a model on
                  any share from a few runs, and the use of cache and DRAM of models without a measurement of it
held_out          errors on runs that the model was not fitted to, beside controls
"""
