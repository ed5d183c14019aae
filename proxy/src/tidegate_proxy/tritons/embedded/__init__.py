"""Embedded Triton: the tritonserver of the nvidia-pytriton wheel, started and stopped by Tidegate.

    with EmbeddedTriton([repository]) as triton:
        ...  # a client talks to triton.grpc_address

`server` runs it, `restarter` restarts it when it exits, `install` finds the wheel's files, `guardian` is the small
process that outlives a killed parent long enough to stop the server, `log` extracts the reason of a failed start.
"""

from tidegate_proxy.tritons.embedded.log import TritonStartError
from tidegate_proxy.tritons.embedded.server import EmbeddedTriton

__all__ = ["EmbeddedTriton", "TritonStartError"]
