"""The HTTP front: every `/v2` route of Triton.

`application` is the ASGI application, `server` the listening server, `interface` what they ask of the rest of the
proxy, `infer_request` and `infer_response` the translation to gRPC's messages and back, `forward` the way to Triton's
own HTTP port, `several` the routes that concern all Tritons.
"""

from tidegate_proxy.http.application import HttpFront
from tidegate_proxy.http.interface import Answer, Call, Guard, Handler, Limits, Scheduling, Triton
from tidegate_proxy.http.server import HttpServer, start_server

__all__ = [
    "Answer",
    "Call",
    "Guard",
    "Handler",
    "HttpFront",
    "HttpServer",
    "Limits",
    "Scheduling",
    "Triton",
    "start_server",
]
