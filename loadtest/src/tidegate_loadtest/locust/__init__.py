"""Locust for models: its web page, command line and workers, over tritonclient's own gRPC and HTTP connections.

`tidegate-locust` runs `locustfile`; one of your own imports `users`, as that does. Whoever imports this package has a
patched process: `import locust` makes the standard library gevent's, the lines below do so for gRPC. Nothing else of
Tidegate imports it.

    locustfile   the users that `tidegate-locust` starts
    users        TritonUser, the base of a locustfile's users; registers the rest with Locust's events
    options      what is added to Locust's command line
    load         what there is to send: a schedule (open loop), or a model that is asked again and again (closed loop)
    triton       the connections, gRPC and HTTP
    worker       a process that sends: its share of the load, lateness, what became of each request
    coordinator    the process that Locust starts tests in: splits the load, gathers the rows, knows the end
    shape        an open loop ends when it has ended
    outcome      the rows as the result of `tidegate loadtest`: tables, JSON, report
    page         the tab of Locust's web page
"""

import sys

import locust  # noqa: F401 - patches the standard library, which has to come first
from grpc.experimental import gevent as grpc_gevent

grpc_gevent.init_gevent()
# gRPC's answers reach gevent through native threads, which compete with the sender for the interpreter: at the usual
# 5 ms a turn they would lie about for longer than most models take.
sys.setswitchinterval(1e-4)
