"""Traces: one span per inference request, in the client's trace, and one per merged batch, in Triton's.

A driver holds `RequestTracer | None`; None costs one comparison. Instants are those of the monotonic clock. Triton uses
the context that it receives only with `--trace-config mode=opentelemetry`.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module

from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Metadata = tuple[tuple[str, str], ...]
"""gRPC metadata, or HTTP headers."""
_CONTEXT_KEYS = frozenset({"traceparent", "tracestate"})
_PROPAGATOR = TraceContextTextMapPropagator()
_ANSWERED = frozenset({"on_time", "late"})


class TracingError(Exception):
    """Error: spans cannot be exported; the message gives the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """Span of a batch that is sent to Triton."""

    requests: int
    rows: int
    worker: str
    started_ns: int
    metadata: Metadata
    """Metadata for the call, so that Triton's spans join the trace."""
    span: Span | None
    """Span; None if the batch is one request, whose own span is used, or if no request is sampled."""


class RequestTracer:
    """Tracer that creates the spans; `close` flushes them."""

    def __init__(self, tracer: Tracer, close: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer
        self.close = close

    def request_arrived(
        self, metadata: Iterable[tuple[str, str | bytes]], *, model: str, version: str, rows: int, at_ns: int
    ) -> Span:
        """Begin the span of a request that came with this metadata (names in any case).

        `at_ns`: instant of its arrival.
        """
        carrier = {
            name.lower(): value if isinstance(value, str) else value.decode("latin-1")
            for name, value in metadata
            if name.lower() in _CONTEXT_KEYS
        }
        return self._tracer.start_span(
            "tidegate.infer",
            _PROPAGATOR.extract(carrier),
            SpanKind.SERVER,
            {"tidegate.model": model, "tidegate.version": version, "tidegate.rows": rows},
            start_time=_since_epoch_ns(at_ns),
        )

    def execution_started(
        self, requests: Sequence[Span], *, model: str, rows: int, worker: str, at_ns: int
    ) -> BatchSpan:
        """Begin the span of a batch of these requests.

        A merged batch gets a span of its own, linked to that of every request; it is in the trace of the first sampled
        one, because a new trace might not be sampled. `worker`: its name; `at_ns`: instant of sending.
        """
        sampled = [span for span in requests if span.is_recording()]
        if len(requests) < 2 or not sampled:
            return BatchSpan(len(requests), rows, worker, at_ns, context_of(requests[0]) if requests else (), None)
        batch = self._tracer.start_span(
            "tidegate.batch",
            set_span_in_context(sampled[0]),
            SpanKind.CLIENT,
            {
                "tidegate.model": model,
                "tidegate.rows": rows,
                "tidegate.batch_requests": len(requests),
                "tidegate.worker": worker,
            },
            links=[Link(span.get_span_context()) for span in sampled],
            start_time=_since_epoch_ns(at_ns),
        )
        for span in sampled:
            span.add_link(batch.get_span_context())
        return BatchSpan(len(requests), rows, worker, at_ns, context_of(batch), batch)

    def execution_ended(self, execution: BatchSpan, *, at_ns: int, error: str | None = None) -> None:
        """End the span of a merged batch.

        `error`: message of a failure, None: it succeeded.
        """
        if execution.span is not None:
            _end(execution.span, at_ns, error)

    def request_ended(
        self, span: Span, outcome: str, *, at_ns: int, queue_ns: int | None = None, execution: BatchSpan | None = None
    ) -> None:
        """End the span of a request. `outcome`: as in `tidegate_requests_total`, with the reason after a colon.

        `queue_ns` and `execution` are set for requests that were part of a batch.
        """
        if not span.is_recording():
            return
        span.set_attribute("tidegate.outcome", outcome)
        if queue_ns is not None:
            span.set_attribute("tidegate.queue_ms", queue_ns / 1e6)
        if execution is not None:
            span.set_attributes(
                {
                    "tidegate.batch_requests": execution.requests,
                    "tidegate.batch_rows": execution.rows,
                    "tidegate.worker": execution.worker,
                }
            )
            span.add_event("batch started", timestamp=_since_epoch_ns(execution.started_ns))
        _end(span, at_ns, None if outcome in _ANSWERED else outcome)


def context_of(span: Span) -> Metadata:
    """Return metadata that makes a call join the trace; it replaces the client's."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span))
    return tuple(carrier.items())


def require_exporter() -> None:
    """Raise TracingError if the extra `tracing`, which `otlp_tracing` needs, is not installed."""
    for package in ("opentelemetry.exporter.otlp.proto.grpc", "opentelemetry.sdk.trace"):
        try:
            import_module(package)
        except ImportError as error:
            raise TracingError(f"{error.name} is missing: pip install 'tidegate-proxy[tracing]'") from error


def otlp_tracing(endpoint: str | None = None, sampled: float = 1.0) -> RequestTracer:
    """Export spans by OTLP over gRPC to `endpoint` (HOST:PORT or a URL; None: as OTEL_EXPORTER_OTLP_* say).

    `sampled`: fraction of the traces that begin here; a client's decision is kept. Raises TracingError if the extra
    `tracing` is not installed.
    """
    require_exporter()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415

    if endpoint and "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(sampled),
        resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "tidegate")}),
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return RequestTracer(provider.get_tracer("tidegate"), provider.shutdown)


def _end(span: Span, at_ns: int, error: str | None) -> None:
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(_since_epoch_ns(at_ns))


def _since_epoch_ns(monotonic_ns: int) -> int:
    return time.time_ns() - time.monotonic_ns() + monotonic_ns
