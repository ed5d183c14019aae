"""The MIG instances of this machine: what there is, what a layout wants, and the way from one to the other.

interface    GPUs and their instances as values
nvml         the same by NVML, through nvidia-ml-py: nothing else here touches a GPU
changes      what a layout wants of a node's GPUs; what goes and comes, checked before anything is touched; doing
             it, and taking it back where the driver refuses
finding      which instance a worker of a layout has
"""
