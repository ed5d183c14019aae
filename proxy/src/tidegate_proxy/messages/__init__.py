"""Inference requests as bytes: parsed no further than scheduling needs, and copied at most once.

request             parses a request: header, tensors as buffers, deadline, application, merge key; its client
passed_through      what is read of a request that bypasses scheduling
slot_request        a request of a model with slots, forwarded unmodified
wire                protobuf without a copy
model_signature     inputs and outputs of a model, against which requests are checked
padding             pads tensors to common shapes, and cuts outputs back
merging             merges requests into one, and splits its response
forwarded_metadata  metadata and headers that are forwarded to a Triton
guards              messages that would crash a Triton
"""
