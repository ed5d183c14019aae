"""Triton servers behind Tidegate.

backend             one Triton: its addresses, channel and health
loop_detector       finds Tritons that are Tidegate itself, or lead back to it
sources             lists of Tritons that come and go: DNS names, files, services of Kubernetes
endpoint_slices     the EndpointSlices of a service of Kubernetes
kubernetes_api      requests to the API server of Kubernetes
catalog             the models and workers of all Tritons, as one immutable value
variants            models whose configurations differ between Tritons
batching_mode       whether a model is batched, unbatched or bypassed; reloads it without Triton's queue delay
declared_padding    the padding that an operator declares, checked against the model's configuration
split_models        models split into partitions, which clients see as one
model_graphs        ensembles whose steps are scheduled, and why others bypass
operator_graphs     graphs of the configuration, checked against the loaded models
workers             the number of workers of a Triton, their execution slots and device class, by its metrics page
serialization       estimates interference between models, and decides whether to serialize their execution
gpus                GPUs and MIG instances of this machine
initial_profiles    the first latency profiles of models
shared_memory       memory regions shared between Tidegate and Tritons on this machine
restrictions        the headers that unlock APIs restricted by Triton
process_memory      memory of a Triton's processes on this machine
mig                 MIG partitions of GPUs (`tidegate mig`)
embedded            the tritonserver of the nvidia-pytriton wheel, started and stopped
"""
