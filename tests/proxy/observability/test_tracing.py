"""Spans of requests and batches, as an exporter gets them."""

import http.server
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import Span, StatusCode

from tests.conftest import eventually
from tests.proxy.fixtures.clients import tensors
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.observability.tracing import RequestTracer, TracingError, context_of, otlp_tracing
from tidegate_proxy.tritons.embedded import EmbeddedTriton

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> RequestTracer:
    """Samples nothing of its own accord; a client's wish is honoured."""
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(0.0))
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return RequestTracer(provider.get_tracer("test"), provider.shutdown)


def _arrive(tracing: RequestTracer, traceparent: str | bytes = SAMPLED, at_ns: int | None = None) -> Span:
    at_ns = time.monotonic_ns() if at_ns is None else at_ns
    return tracing.request_arrived([("Traceparent", traceparent)], model="m", version="1", rows=2, at_ns=at_ns)


def _by_name(exported: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name == name]


@pytest.mark.parametrize("traceparent", [SAMPLED, SAMPLED.encode()])
def test_a_request_alone_passes_its_own_context_on(
    tracing: RequestTracer, exported: InMemorySpanExporter, traceparent: str | bytes
) -> None:
    arrival_ns = time.monotonic_ns()
    span = _arrive(tracing, traceparent, arrival_ns)
    execution = tracing.execution_started([span], model="m", rows=2, worker="w/0", at_ns=arrival_ns + 3_000_000)
    assert dict(execution.metadata)["traceparent"].startswith(f"00-{TRACE}-")
    assert execution.metadata == context_of(span)
    tracing.execution_ended(execution, at_ns=arrival_ns + 9_000_000)
    tracing.request_ended(span, "on_time", at_ns=arrival_ns + 10_000_000, queue_ns=3_000_000, execution=execution)
    [request] = exported.get_finished_spans()
    assert request.name == "tidegate.infer"
    assert request.parent is not None
    assert request.parent.span_id == int(PARENT, 16)
    assert request.attributes == {
        "tidegate.model": "m",
        "tidegate.version": "1",
        "tidegate.rows": 2,
        "tidegate.outcome": "on_time",
        "tidegate.queue_ms": 3.0,
        "tidegate.batch_requests": 1,
        "tidegate.batch_rows": 2,
        "tidegate.worker": "w/0",
    }
    assert request.status.status_code is StatusCode.UNSET
    # Both ends are taken from the monotonic clock, through the wall clock at two instants.
    assert request.end_time is not None and request.start_time is not None
    assert request.end_time - request.start_time == pytest.approx(10_000_000, abs=1_000_000)


def test_a_merged_batch_links_to_its_requests(tracing: RequestTracer, exported: InMemorySpanExporter) -> None:
    spans = [_arrive(tracing), _arrive(tracing, UNSAMPLED), _arrive(tracing)]
    now_ns = time.monotonic_ns()
    execution = tracing.execution_started(spans, model="m", rows=6, worker="w/0", at_ns=now_ns)
    tracing.execution_ended(execution, at_ns=now_ns + 5)
    for span in spans:
        tracing.request_ended(span, "late", at_ns=now_ns + 9, execution=execution)
    [batch] = _by_name(exported, "tidegate.batch")
    requests = _by_name(exported, "tidegate.infer")
    assert len(requests) == 2
    assert [link.context.span_id for link in batch.links] == [request.context.span_id for request in requests]
    assert all([link.context for link in request.links] == [batch.context] for request in requests)
    assert batch.attributes == {
        "tidegate.model": "m",
        "tidegate.rows": 6,
        "tidegate.batch_requests": 3,
        "tidegate.worker": "w/0",
    }
    assert dict(execution.metadata)["traceparent"] == f"00-{TRACE}-{batch.context.span_id:016x}-01"


def test_nothing_is_made_of_requests_that_are_not_sampled(
    tracing: RequestTracer, exported: InMemorySpanExporter
) -> None:
    spans = [_arrive(tracing, UNSAMPLED), tracing.request_arrived([], model="m", version="", rows=1, at_ns=0)]
    execution = tracing.execution_started(spans, model="m", rows=3, worker="w/0", at_ns=1)
    assert execution.span is None
    assert dict(execution.metadata)["traceparent"].endswith("-00"), "Triton must not sample it either"
    tracing.execution_ended(execution, at_ns=2)
    for span in spans:
        tracing.request_ended(span, "on_time", at_ns=3, execution=execution)
    assert exported.get_finished_spans() == ()


def test_failures_are_errors(tracing: RequestTracer, exported: InMemorySpanExporter) -> None:
    dropped = _arrive(tracing)
    tracing.request_ended(dropped, "dropped: deadline", at_ns=time.monotonic_ns())
    pair = [_arrive(tracing), _arrive(tracing)]
    execution = tracing.execution_started(pair, model="m", rows=4, worker="w/0", at_ns=time.monotonic_ns())
    tracing.execution_ended(execution, at_ns=time.monotonic_ns(), error="UNAVAILABLE")
    statuses = {span.name: span.status for span in exported.get_finished_spans()}
    assert statuses["tidegate.infer"].status_code is StatusCode.ERROR
    assert statuses["tidegate.infer"].description == "dropped: deadline"
    assert statuses["tidegate.batch"].description == "UNAVAILABLE"


def test_a_traceparent_that_is_none_begins_a_trace(tracing: RequestTracer) -> None:
    span = _arrive(tracing, b"\xff nonsense")
    assert span.get_span_context().is_valid
    assert f"{span.get_span_context().trace_id:032x}" != TRACE


def test_a_batch_that_every_client_left_has_no_context(tracing: RequestTracer) -> None:
    assert tracing.execution_started([], model="m", rows=1, worker="w/0", at_ns=0).metadata == ()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    with pytest.raises(TracingError, match=r"pip install 'tidegate-proxy\[tracing\]'"):
        otlp_tracing()


def test_spans_arrive_at_a_collector() -> None:
    received: list[ExportTraceServiceRequest] = []

    def export(request: ExportTraceServiceRequest, _: object) -> ExportTraceServiceResponse:
        received.append(request)
        return ExportTraceServiceResponse()

    method = grpc.unary_unary_rpc_method_handler(
        export, ExportTraceServiceRequest.FromString, ExportTraceServiceResponse.SerializeToString
    )
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    collector = grpc.server(ThreadPoolExecutor(1))
    collector.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": method}),))
    port = collector.add_insecure_port("127.0.0.1:0")
    collector.start()
    try:
        tracing = otlp_tracing(f"127.0.0.1:{port}")
        span = tracing.request_arrived([], model="m", version="1", rows=1, at_ns=time.monotonic_ns())
        tracing.request_ended(span, "cancelled", at_ns=time.monotonic_ns())
        tracing.close()
    finally:
        collector.stop(0).wait()
    [resource] = received[0].resource_spans
    assert "tidegate" in {attribute.value.string_value for attribute in resource.resource.attributes}
    assert [exported.name for exported in resource.scope_spans[0].spans] == ["tidegate.infer"]


@pytest.fixture
def collected() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Where to send spans by OTLP over HTTP, as JSON; and those that came."""
    spans: list[dict[str, Any]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            spans.extend(
                span
                for resource in body["resourceSpans"]
                for scope in resource["scopeSpans"]
                for span in scope["spans"]
            )
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep still."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", spans
        server.shutdown()
        thread.join()


def test_spans_of_triton_join_the_trace(
    tracing: RequestTracer,
    collected: tuple[str, list[dict[str, Any]]],
    start_triton: Callable[..., EmbeddedTriton],
    tmp_path: Path,
) -> None:
    url, spans = collected
    add_model(tmp_path, "echo", "max_batch_size: 4")
    # A rate of 0: it traces no request of its own accord.
    settings = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={url}"]
    settings.append("opentelemetry,bsp_schedule_delay=50")
    triton = start_triton([tmp_path], options=[f"--trace-config={setting}" for setting in settings])
    execution = tracing.execution_started(
        [_arrive(tracing), _arrive(tracing)], model="echo", rows=2, worker="w", at_ns=time.monotonic_ns()
    )
    assert execution.span is not None
    client = triton_grpc.InferenceServerClient(triton.grpc_address)

    def arrived() -> bool:  # again and again: what Triton exports while its collector is slow is lost
        client.infer("echo", tensors({"X": np.ones((2, 1), np.float32)}), headers=dict(execution.metadata))
        return any(span["name"] == "InferRequest" for span in spans)

    eventually(arrived, "Triton's spans")
    client.close()
    triton.stop()
    root = next(span for span in spans if span["name"] == "InferRequest")
    assert root["traceId"] == TRACE
    assert root["parentSpanId"] == f"{execution.span.get_span_context().span_id:016x}"
