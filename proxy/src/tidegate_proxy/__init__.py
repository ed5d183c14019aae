"""Tidegate live: the only code with an event loop and a network.

commands/    what it adds to `tidegate`: serve, triton
serve        puts the pieces together
front        the gRPC server that clients see
catalog      what the Tritons behind it serve: models, signatures, workers
envelope     one inference request: its header, its tensors as buffers, what it can be merged with
merging      gather envelopes into one request for Triton, scatter the answer
wire         protobuf's wire format, as far as needed not to copy tensors
driver       drives the engine under the monotonic clock: runs legs on Tritons, answers clients
backend      one Triton: its channel, whether it is alive
profiles     the profile file           profiler    measures one
embedded/    the tritonserver of the nvidia-pytriton wheel, started and stopped
"""
