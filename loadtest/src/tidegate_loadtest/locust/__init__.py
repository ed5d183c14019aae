"""Locust for inference servers: its web page, command line and workers, over tritonclient's gRPC and HTTP connections.

`tidegate-locust` runs `locustfile`; a locustfile of your own imports `users`. Importing this package patches the
process: `import locust` replaces the standard library's sockets and threads with gevent's, and the lines below do so
for gRPC. No other package of Tidegate imports it.

    locustfile   the users that `tidegate-locust` starts
    users        TritonUser, the base class of users, and its options; sends a scenario; the tab of Locust's web page
    attainment   counts by model that workers report to the master, as a table
    triton       the connections, gRPC and HTTP
"""

import sys

import locust  # noqa: F401 - patches the standard library, which has to come first
from grpc.experimental import gevent as grpc_gevent

grpc_gevent.init_gevent()
# gRPC's answers reach gevent through native threads, which compete with the sender for the interpreter: at the usual
# 5 ms a turn they would lie about for longer than most models take.
sys.setswitchinterval(1e-4)
