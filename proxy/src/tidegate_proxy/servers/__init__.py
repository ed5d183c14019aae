"""Servers that clients connect to.

grpc     every method of Triton's gRPC service
streams  inference streams, scheduled or bypassed
http     the HTTP service
"""
