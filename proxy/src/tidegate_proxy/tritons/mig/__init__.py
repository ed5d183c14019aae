"""MIG instances of this machine: the current ones, those of a layout, and the changes between them.

interface        GPUs and their instances as values
nvml             the same through NVML (nvidia-ml-py): the only module that touches a GPU
changes          plans the changes that a layout needs on a node, checks them, applies them and rolls back on failure
instance_lookup  the instance of each worker of a layout
"""
