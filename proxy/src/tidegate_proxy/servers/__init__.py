"""What clients connect to.

grpc     every method of Triton's gRPC service
streams  inference streams, scheduled or passing
http     the HTTP service
"""
