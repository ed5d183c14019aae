"""HTTP server with every `/v2` route of Triton.

service          HTTP service as a part of the proxy; interface: between this package and the proxy
server           listener; connection: one connection, and all of them with the eviction of idle ones
application      ASGI application: schedules inference, and forwards everything else to a Triton
  exchange         one request, its body and its response; routes: normalized paths; compression: of bodies
  infer_request    translation to gRPC messages; infer_response: and back; json_data: tensors as JSON
  json_worker_pool            processes that parse and write large JSON, shared by fair queueing
  forward          calls to the HTTP port of one Triton, or of all; screening: requests that must not be forwarded
  slots            forwards inferences to models with slots
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
