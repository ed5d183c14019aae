"""Servers that clients connect to.

grpc     every method of Triton's gRPC service
streams  inference streams, scheduled or bypassed
  slot_streams  the requests of one inference stream that wait for slots, or have them
http     the HTTP service
"""
