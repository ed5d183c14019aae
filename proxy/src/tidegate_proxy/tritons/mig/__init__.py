"""The MIG instances of this machine: what there is, what a layout wants, and the way from one to the other.

interface    GPUs and their instances as values, and the few things that may be done to them
nvml         the same by NVML, through nvidia-ml-py: nothing else here touches a GPU
wanted       what a layout wants of the GPUs of one node
changes      what has to go and to come; everything that speaks against it is found before anything is touched
applying     carrying changes out, and taking them back where the driver refuses one
finding      which instance a worker of a layout has
"""
