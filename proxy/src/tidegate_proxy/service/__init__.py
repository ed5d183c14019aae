"""Triton's API over all Tritons.

inference           a request is scheduled, or passes
passthrough         a request that passes: to which Triton, and back; sequences keep theirs
stream_passthrough  streams that pass
control             every other call: answered by Tidegate, for all Tritons, or by one of them
fan_out             calls that concern every Triton, and the one answer to them
discovery           keeps the catalog true, and looks whether each Triton is alive
batch_verification  whether a batch gives the answers that its requests have alone
"""
