"""Locust for inference servers: its web page, command line and workers, over tritonclient's gRPC and HTTP connections.

`tidegate-locust` runs `locustfile`; a locustfile of your own imports `users`. Importing this package patches the
process: `import locust` replaces the standard library's sockets and threads with gevent's, and the lines below do so
for gRPC. No other package of Tidegate imports it.

    locustfile   the users that `tidegate-locust` starts
    users        TritonUser, the base class of users; registers the rest with Locust's events, the tab of its web
                 page, and the end of an open loop
    options      options added to Locust's command line
    load         requests to send: a schedule (open loop), or a model that is called repeatedly (closed loop)
    triton       the connections, gRPC and HTTP
    worker       a sending process: its part of the load, lateness, outcome of each request
    coordinator    the process in which Locust starts tests: splits the load, gathers the rows, detects the end
    outcome      the rows as the result of `tidegate loadtest`: tables, JSON, report
"""

import sys

import locust  # noqa: F401 - patches the standard library, which has to come first
from grpc.experimental import gevent as grpc_gevent

grpc_gevent.init_gevent()
# gRPC's answers reach gevent through native threads, which compete with the sender for the interpreter: at the usual
# 5 ms a turn they would lie about for longer than most models take.
sys.setswitchinterval(1e-4)
