"""One inference request as bytes: read no further than scheduling needs, and copied once at most.

request             opens a request: its heading, tensors as buffers, deadline, application, merge key; who waits for it
wire                protobuf without a copy
model_signature     the inputs and outputs of a model that requests are checked against
padding             fills tensors to common shapes, and cuts outputs back
merging             gathers requests into one, and divides its answer
forwarded_metadata  metadata and headers that go on to a Triton
guards              messages that would end a Triton
"""
