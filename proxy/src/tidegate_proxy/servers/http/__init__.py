"""The HTTP server: every `/v2` route of Triton.

service          the HTTP service as a part of the proxy; interface: what the rest of this package asks of the proxy
server           listens; connection: one, and all of them with who makes room
application      the ASGI application: inferences are scheduled, all else goes on to a Triton
  exchange         one request, its body and its response; routes: paths, in their normal form; compression: of bodies
  infer_request    the translation to gRPC's messages; infer_response: and back; json_data: tensors as JSON
  json_worker_pool            large JSON is read and written in other processes, by turns of the clients who wait for
                              one
  forward          the way to a Triton's own HTTP port, or those of all; screening: what may not go that way
"""

from tidegate_proxy.servers.http.application import HttpApplication
from tidegate_proxy.servers.http.interface import Guard, Handler, HttpAnswer, HttpCall, HttpLimits
from tidegate_proxy.servers.http.server import HttpServer, start_server

__all__ = [
    "Guard",
    "Handler",
    "HttpAnswer",
    "HttpApplication",
    "HttpCall",
    "HttpLimits",
    "HttpServer",
    "start_server",
]
