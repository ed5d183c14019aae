"""The embedded Triton: the real tritonserver of the nvidia-pytriton wheel, started and stopped by Tidegate.

    with EmbeddedTriton([repository]) as triton:
        ...  # a client talks to triton.grpc_address

`server` is the thing itself, `revival` starts it again where it dies, `install` finds the wheel's files, `guardian` is
the small process that outlives a killed parent long enough to stop the server, `log` reads why a start failed.
"""

from tidegate_proxy.tritons.embedded.log import TritonStartError
from tidegate_proxy.tritons.embedded.server import EmbeddedTriton

__all__ = ["EmbeddedTriton", "TritonStartError"]
