"""The HTTP front: every `/v2` route of Triton.

service          the HTTP service as a part of the proxy; interface: what the rest of this package asks of the proxy
server           listens; connections: all of them, and who of them makes room; connection: one
application      the ASGI application: inferences are scheduled, all else goes on to a Triton
  exchange         one request, its body and its response; routes: their paths; compression: of bodies
  infer_request    the translation to gRPC's messages; infer_response: and back; json_data, doubles: tensors as JSON
  aside            large JSON is read and written in other processes; fair_queue: who waits for one of them
  forward          the way to a Triton's own HTTP port; screening: what may not go that way
  several          routes that concern all Tritons; split: routes about split models
"""

from tidegate_proxy.servers.http.application import HttpFront
from tidegate_proxy.servers.http.interface import Answer, Call, Guard, Handler, HttpLimits, Scheduling, Triton
from tidegate_proxy.servers.http.server import HttpServer, start_server

__all__ = [
    "Answer",
    "Call",
    "Guard",
    "Handler",
    "HttpFront",
    "HttpLimits",
    "HttpServer",
    "Scheduling",
    "Triton",
    "start_server",
]
