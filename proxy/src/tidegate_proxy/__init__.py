"""Tidegate live: the only code with an event loop, threads and a network.

commands/          what it adds to `tidegate`: serve, check, triton
serve              puts the pieces together, and takes up a changed configuration: BEGIN HERE
front, streams     the gRPC service that clients see; http/ the HTTP service
inference          what becomes of a request: scheduled, or sent on
  envelope           a request: header, tensors as buffers, what it can be merged with; client: who waits for it
  merging            gather envelopes into one request for Triton, scatter the answer; wire: protobuf, uncopied
  deadlines          when a request is due; headroom: what the way back takes
driver             drives the engine under the monotonic clock: takes requests, carries out effects
  locked_engine      the engine for many threads; alarm: when to wake it
  legs               those that run on Tritons; recovery: what becomes of one that failed
  membership         Tritons that come and go
control            every other call: answered for all Tritons together, or by one of them
backend            one Triton; probing: whether it is alive
discovery          keeps the catalog true; catalog, signature: what the Tritons serve
transport/         gRPC, two ways behind one interface: grpcio's completion queues; libnghttp2 in the event loop
access/ configuration/ observability/   TLS and credentials; the file; metrics, statistics, traces, logs
embedded/          the tritonserver of the nvidia-pytriton wheel, started and stopped
"""
