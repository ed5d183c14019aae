"""gRPC on grpcio's completion queues, without its Python layers: bytes in, bytes out, callbacks instead of coroutines.

grpc.aio costs 0.2 ms of a core per call on each side, the synchronous server 0.15 and a thread per waiting request;
this costs 0.05 (docs/decisions/0012-the-front-is-a-completion-queue.md). The price: `grpc._cython.cygrpc` is not
public, so grpcio is pinned to the versions that the tests ran with. Nothing outside this package imports it.
"""

from tidegate_proxy.transport.grpcio.channel import Channel
from tidegate_proxy.transport.grpcio.server import Server

__all__ = ["Channel", "Server"]
