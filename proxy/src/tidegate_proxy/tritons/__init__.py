"""The Triton servers behind Tidegate.

backend             one Triton: its addresses, channel and health
catalog             what all of them serve, as one value
variants            models whose configurations differ between Tritons
batching_mode       whether a model's requests are merged, run alone or pass through; loads it without Triton's delay
declared_padding    the padding that an operator declares, checked against the model's configuration
split_models        models in partitions, which clients see as one
workers             how many workers a Triton is, which instances run in turn on them, and of what kind they are
serialization       by how much models slow each other down, and whether they should take turns therefore
gpus                which GPUs and MIG instances this machine has
starting_profiles   how long batches are expected to take at first
shared_memory       regions that Tidegate and Tritons on this machine share
restrictions        the headers that open what a Triton restricts
metrics_scrape      the metrics pages of Tritons
mig                 how GPUs are cut (`tidegate mig`)
embedded            the tritonserver of the nvidia-pytriton wheel, started and stopped
"""
