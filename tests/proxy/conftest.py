"""What the proxy's tests share: each fixture is where its concept is, in `fixtures/`."""

from tests.proxy.fixtures.calls import call, open_stream, outcome, request_of, rest_of, start_call, start_overdue
from tests.proxy.fixtures.clients import connect, infer_all, tensors
from tests.proxy.fixtures.fake_answers import merged
from tests.proxy.fixtures.fake_triton import fake_http, start_fake
from tests.proxy.fixtures.gate import gate, gate_itself, jam
from tests.proxy.fixtures.here import serve_here, start_proxy_here
from tests.proxy.fixtures.logs import log_fields_captured
from tests.proxy.fixtures.models import add_model, policy, tidegate, triton

__all__ = [
    "add_model",
    "call",
    "connect",
    "fake_http",
    "gate",
    "gate_itself",
    "infer_all",
    "jam",
    "log_fields_captured",
    "merged",
    "open_stream",
    "outcome",
    "policy",
    "request_of",
    "rest_of",
    "serve_here",
    "start_call",
    "start_fake",
    "start_overdue",
    "start_proxy_here",
    "tensors",
    "tidegate",
    "triton",
]
